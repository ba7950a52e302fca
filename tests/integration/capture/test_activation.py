"""When recording begins, when it does not, and how it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import single_rank
from tests.support.waiting import PATIENCE

IS_RECORDING = """
session_module.start_monitor = no_monitor
start()
dist.all_reduce(torch.ones(2))
rings = [name for name in os.listdir(os.environ["OTEL_FR_RING_DIR"]) if name.startswith("otel-fr-")]
print(hook._state.session is not None, len(rings) == 1)
"""


def python(folder: Path, code: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a program that has not imported torch yet."""
    env = single_rank.environment(folder, OTEL_FR_ENABLED="1", **extra)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(("enabled", "records"), [("", True), ("0", False)])
def test_the_environment_switches_it_on_and_off(tmp_path: Path, enabled: str, records: bool) -> None:
    """`tests/unit/core/test_config.py` tests the variables; `tests/acceptance/test_running_job.py` makes no call."""
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_FR_ENABLED": enabled}
    body = "import otel_fr\notel_fr.instrument()\n" + IS_RECORDING
    assert single_rank.succeed(tmp_path, body, **env) == f"{records} {records}\n"


def test_by_hand_and_all_ways_together(tmp_path: Path) -> None:
    out = single_rank.succeed(
        tmp_path,
        """
        import otel_fr
        from otel_fr._activate import torch_backend_loaded
        from otel_fr._instrumentor import OtelFrInstrumentor
        session_module.start_monitor = no_monitor
        print(hook._state.installed)
        otel_fr.instrument()
        otel_fr.instrument()
        OtelFrInstrumentor().instrument(skip_dep_check=True)
        torch_backend_loaded()
        start()
        session = hook._state.session
        otel_fr.instrument()
        dist.new_group([0, 1])
        dist.all_reduce(torch.ones(2))
        print(hook._state.session is session, ring().head)
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert out == "False\nTrue 2\n"  # one of them is the creation of the group


def test_before_torch_is_imported(tmp_path: Path) -> None:
    code = (
        "import otel_fr, sys\n"
        "from otel_fr._instrumentor import OtelFrInstrumentor\n"
        "OtelFrInstrumentor().instrument(skip_dep_check=True)\n"
        "assert 'torch' not in sys.modules\n" + single_rank.PRELUDE + IS_RECORDING
    )
    done = python(tmp_path, code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.stdout == "True True\n", done.stderr


def test_importing_the_package_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import otel_fr, pkgutil, sys; otel_fr.instrument(); otel_fr.dump(); otel_fr.uninstrument();"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'opentelemetry', 'grpc', 'numpy', 'msgspec')])\n"
        "names = {found.name for found in pkgutil.iter_modules(otel_fr.__path__)}\n"
        "print(names & set(otel_fr.__all__))"  # no module hides a function
    )
    done = python(tmp_path, code)
    assert done.stdout == "[]\nset()\n", done.stderr


def test_an_error_of_ours_does_not_break_import_torch(tmp_path: Path) -> None:
    code = (
        "import otel_fr\n"
        "def broken(): raise RuntimeError('broken for the test')\n"
        "otel_fr.instrument = broken\n"
        "import torch\n"
        "print(torch.ones(2).sum().item())\n"
    )
    done = python(tmp_path, code)
    assert done.stdout == "2.0\n"
    assert "broken for the test" in done.stderr


@pytest.mark.usefixtures("warm")
def test_nothing_starts_before_a_process_group(tmp_path: Path) -> None:
    out = single_rank.succeed(
        tmp_path,
        """
        from torch.utils.data import DataLoader

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 2
            def __getitem__(self, index):
                recording = hook._state.session is not None
                threads = sum(thread.name == "otel-fr" for thread in threading.enumerate())
                return torch.tensor([recording, threads, hook._state.installed])

        def look():
            folders = [name for name in os.listdir(os.environ["OTEL_FR_RING_DIR"]) if name.startswith("otel-fr")]
            return len(folders), [thread.name for thread in threading.enumerate()]

        if __name__ == "__main__":
            print(look(), hook._state.installed)
            for batch in DataLoader(Data(), num_workers=1, multiprocessing_context="spawn", batch_size=2):
                print(batch.tolist())
            print(look()[0])
        """,
        RANK="0",
        WORLD_SIZE="1",
    )
    assert out == "(0, ['MainThread']) True\n[[0, 0, 1], [0, 0, 1]]\n0\n"


@pytest.mark.usefixtures("each_engine", "warm")
def test_uninstrument_puts_back_every_attribute_of_the_table(tmp_path: Path) -> None:
    """Also if all of them were replaced, because of an action on peer failure and calls without a future."""
    out = single_rank.succeed(
        tmp_path,
        """
        import importlib
        import pathlib
        import otel_fr
        from otel_fr.capture.replaced import Attribute
        from otel_fr.fault_tolerance.peers import peers

        def there():
            found = {}
            for one in Attribute:
                if not one.module.startswith("torchft"):
                    module = importlib.import_module(one.module)
                    *above, name = one.path.split(".")
                    for part in above:
                        module = getattr(module, part)
                    if hasattr(module, name):
                        found[one] = vars(module)[name]
            return found

        otel_fr.uninstrument()
        before = there()
        public = dist.destroy_process_group
        otel_fr.instrument()
        session_module.start_monitor = no_monitor
        store = dist.FileStore(os.path.join(os.environ["OTEL_FR_RING_DIR"], "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        dist.reduce_scatter_tensor(torch.zeros(2), torch.ones(2))
        hook._state.session._peer_actions.handle({"cmd": "end_calls", "names": []})
        hook._state.session._add_stack_signal(pathlib.Path(os.environ["OTEL_FR_RING_DIR"], "stacks"))
        print([one.name for one, value in there().items() if value is before[one]])
        print(dist.destroy_process_group is public)
        otel_fr.uninstrument()
        print([one.name for one, value in there().items() if value is not before[one]])
        print(dist.destroy_process_group is public)
        dist.destroy_process_group()
        """,
        OTEL_FR_ON_PEER_FAILURE="abort",
    )
    kept, *lines = out.splitlines()
    assert kept in ("[]", "['END_BATCH']")  # END_BATCH is for the compiled engine
    # init_process_group has put torch's own hook above our first hook.
    assert lines == ["False", "['EXCEPTHOOK', 'OUTERMOST_EXCEPTHOOK']", "True"]


@pytest.mark.usefixtures("each_engine", "warm")
def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    out = single_rank.succeed(
        tmp_path,
        """
        session_module.start_monitor = no_monitor
        start()
        dist.all_reduce(torch.ones(2))
        reader = ring()
        child = os.fork()
        if not child:
            dist.all_reduce(torch.ones(2))
            dist.new_group([0, 1])
            dist.destroy_process_group()
            start()
            dist.all_reduce(torch.ones(2))
            assert hook._state.session is None
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        dist.all_reduce(torch.ones(2))
        print(os.waitstatus_to_exitcode(status), reader.head, int(reader.state), [g.enqueued for g in reader.groups()])
        print(hook._state.session._writer.path.exists())
        """,
    )
    assert out == "7 2 0 [2]\nTrue\n"
