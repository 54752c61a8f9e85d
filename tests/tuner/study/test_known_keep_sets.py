from __future__ import annotations

import json
from pathlib import Path

from exported_studies import measured, policy, study_of

from runners.trial import ModelInspection
from search_spaces.model_shape import BlockList, KeepSet, ModelShape
from tuner.study.known_keep_sets import with_known_keep_sets
from tuner.study.record import goal_of


def inspection(*keep: str) -> ModelInspection:
    blocks = BlockList("transformer.h", "Block", 12, keep_sets=(KeepSet("selective", keep),))
    return ModelInspection(shape=ModelShape(1, (blocks,)), model_class="Model")


def test_a_study_that_no_session_has_begun_takes_what_was_found(tmp_path: Path) -> None:
    found = inspection("aten.mm.default")
    assert with_known_keep_sets(found, tmp_path / "results.json", lambda: None) == found


def test_a_study_that_goes_on_takes_what_its_first_session_found(tmp_path: Path) -> None:
    data = json.loads(study_of(measured(0, policy("none"))).to_json())
    data["model"]["block_lists"][0]["keep_sets"] = [{"asked": "selective", "keep": ["aten.bmm.default"]}]
    file = tmp_path / "results.json"
    file.write_text(json.dumps(data))
    before = inspection("aten.bmm.default")
    assert with_known_keep_sets(inspection("aten.mm.default"), file, lambda: {}) == before


def test_where_the_file_is_damaged_the_store_of_trials_knows_what_was_found(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text("{")
    before = inspection("aten.bmm.default")
    goal = json.loads(json.dumps(goal_of({}, before)))
    assert with_known_keep_sets(inspection("aten.mm.default"), file, lambda: goal) == before
