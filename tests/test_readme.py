"""The README's pipeline runs as it stands there, and prints what the README says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_pipeline_of_the_readme_runs(tmp_path: Path) -> None:
    page = README.read_text()
    pipelines = [
        block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "Broker()" in block
    ]
    assert len(pipelines) == 1
    script = tmp_path / "pipeline.py"
    script.write_text(pipelines[0])
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert f"It prints `{run.stdout.strip()}`." in page
