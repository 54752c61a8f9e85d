from __future__ import annotations

import subprocess
import sys


def test_no_sampler_that_is_not_chosen_loads_torch() -> None:
    script = (
        "import sys\n"
        "from search_spaces.choices import SearchChoices\n"
        "from search_spaces.model_shape import ModelShape\n"
        "from search_spaces.registry import make_space\n"
        "from tuner.sampling.policy_study import open_policy_study\n"
        "from tuner.sampling.registry import make_sampler\n"
        "space = make_space('two_action', SearchChoices(ModelShape(1), 4, (4, 2), ('none',)))\n"
        "open_policy_study('study', space=space, sampler=make_sampler('tpe', space, seed=0)).ask()\n"
        "assert 'torch' not in sys.modules\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
