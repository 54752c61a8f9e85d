"""A search on a cluster whose only node goes away and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster
from real_study import EXIT_DONE, RealStudy
from study_state import finished_results

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1800)]

NUM_POLICIES = 12


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head that runs no trials."""
    made: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    yield made
    made.shutdown()


def test_a_search_waits_for_a_node_and_uses_the_one_that_returns(tmp_path: Path, cluster: Any) -> None:
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    study = RealStudy(tmp_path / "study")
    study.write(runner={"ray_address": cluster.address}, search={"time_limit": "30m"})
    driver = study.start()
    study.wait_until_logged(driver, "trial   1")
    cluster.remove_node(node)
    study.wait_until_logged(driver, "no node of the cluster has CPU: 1 any more; waiting for one")
    kept = finished_results(study.folder)
    cluster.add_node(num_cpus=1)
    assert driver.wait(900) == EXIT_DONE, study.logged
    assert "Traceback" not in study.logged
    assert finished_results(study.folder).items() >= kept.items(), "a finished trial was lost"
    lost = [trial for trial in study.results["trials"] if trial["status"] == "NODE_LOST"]
    assert len(lost) <= 1
    assert sum(trial["status"] == "COMPLETED" for trial in study.results["trials"]) == NUM_POLICIES
