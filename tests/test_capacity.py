"""The capacity model: its arithmetic by hand, how it moves with what is asked, and where its constants come from."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import frames, model
from benchmarks.capacity import Impossible, Load, bearable, frame_bytes, plan
from benchmarks.figure import Figure
from benchmarks.measuring import NAMES
from benchmarks.server import Place
from timerd.config import Config
from timerd_cluster.logs import SEGMENT_BYTES
from timerd_cluster.roster import DEAD_MS

ROOT = Path(__file__).parents[1]
CONSTANTS = model.read()
MEASURED = model.values(CONSTANTS)
ROUND = dict.fromkeys(MEASURED, 0.0) | {
    "arm": 2.0, "fire": 4.0, "loop": 6.0, "forward": 3.0, "arm_files": 1.0, "fire_files": 2.0, "loop_files": 3.0,
    "nats_message": 100.0, "nats_kib": 10.0, "append": 2.0, "syncs": 1_000.0, "read": 100.0,
    "frame_armed": 50.0, "frame_body": 80.0, "frame_fired": 20.0, "slices": 1.0, "memory_timer": 250.0,
    "bodies_written": 1.5, "bodies_kept": 2.0, "memory_node": 1e8, "replay": 4.0, "dead": 4.0, "lease": 5.0,
}  # fmt: skip


def test_a_loop_by_hand() -> None:
    found = plan(Load(rate=100_000, pending=6e6, share=0.5), ROUND)
    # 0.6 cores of work, half a core a node: two, and one that may be missing.
    assert (found.nodes, found.shards) == (3, 24)
    assert found.cores == pytest.approx(0.6)
    assert found.node_cores == pytest.approx(0.2)
    assert found.node_cores_short == pytest.approx(0.3)
    # 125 batches a second, 41.7 on each node, each of them a message into each of its eight shards.
    assert found.messages == pytest.approx(1_000)
    assert found.timers_a_message == pytest.approx(100)
    assert found.bytes == pytest.approx(100_000 * 2 * 50)
    assert found.bytes_written == pytest.approx(3 * found.bytes)
    # Each message on three disks, 500 a second on each: six servers.
    assert found.nats_servers == 6
    assert found.syncs == pytest.approx(500)
    assert found.nats_cores == pytest.approx(3 * (1_000 * 100 + found.bytes / 1024 * 10) / 1e6)
    assert found.memory == pytest.approx(1e8 + 3e6 * 250)
    assert found.disk == pytest.approx(3 * 6e6 * 50 * 3 / 6)
    # A third of the timers, half of it on each of the two: read at 100 MB/s, applied at 4 us.
    assert found.takeover_s == pytest.approx(4 + 5 + 3 * 1e6 * 50 / 1e8 + 4)
    assert found.files_cores == pytest.approx(0.3)


def test_a_message_costs_its_node_too() -> None:
    asked = Load(rate=100_000, pending=6e6, share=0.5, shards=24)
    found = plan(asked, ROUND | {"node_message": 200.0, "shard_idle": 1_000.0})
    assert found.nodes == 3
    # 1,000 messages a second, and 24 shards that are there.
    assert found.cores == pytest.approx(0.6 + 0.2 + 0.024)
    assert found.node_cores == pytest.approx(found.cores / 3)


def test_arms_over_http_are_forwarded_unless_clients_know_where_to() -> None:
    asked = Load(rate=100_000, pending=6e6, rearmed=0, spare=0, share=0.5)
    found = plan(asked, ROUND)
    assert found.nodes == 2
    assert found.forwarded == pytest.approx(1 / 2)
    assert found.cores == pytest.approx(0.1 * (4 + 2 + 3 / 2))
    routed = plan(asked._replace(routed=True), ROUND)
    assert routed.forwarded == 0
    assert routed.cores == pytest.approx(0.1 * (4 + 2))
    assert routed.messages < found.messages, "a request is one node's"


def test_a_large_payload_is_a_place_in_the_frame_and_bytes_beside_it() -> None:
    assert frame_bytes(0, ROUND) == 50
    assert frame_bytes(100, ROUND) == 152
    assert frame_bytes(2_000, ROUND) == 80
    asked = Load(rate=1_000, pending=1e6, rearmed=0, payload=2_000)
    found = plan(asked, ROUND)
    assert found.bytes == pytest.approx(1_000 * (80 * 2 + 20 + 2_000 * 1.5))
    assert found.disk == pytest.approx(3 * 1e6 * 80 + 1e6 * 2_000 * 2)
    assert found.memory == plan(asked._replace(payload=0), ROUND).memory
    assert plan(asked._replace(payload=100), ROUND).memory > found.memory


def test_a_stream_takes_no_more_than_one_message_after_the_other() -> None:
    found = plan(Load(rate=400_000, pending=1e6, batch=10), ROUND)
    assert found.messages_a_stream == found.stream_limit == 500


def test_what_can_not_be_had() -> None:
    with pytest.raises(Impossible):
        plan(Load(rate=1e9, pending=1), ROUND)
    with pytest.raises(Impossible):
        plan(Load(rate=1e6, pending=1, shards=2), ROUND)
    with pytest.raises(Impossible, match="larger batches"):
        plan(Load(rate=1e6, pending=1, batch=1, share=0.1), ROUND | {"node_message": 400.0})


def test_what_so_many_nodes_bear() -> None:
    asked = Load(rate=1, pending=0, share=0.5)
    load, found = bearable(asked, ROUND, 3)
    # Two of them, half a core each, at 6 us a loop.
    assert load.rate == pytest.approx(166_000)
    assert (found.nodes, found.shards) == (3, 24)
    assert found.node_cores_short == pytest.approx(0.5, rel=0.01)
    again = plan(load._replace(rate=load.rate), ROUND)
    assert again.nodes == 3, "and the other way round"
    with pytest.raises(Impossible, match="more nodes than shards"):
        bearable(asked._replace(shards=2), ROUND, 3)
    with pytest.raises(Impossible, match="nodes that may be missing"):
        bearable(asked, ROUND, 1)
    with pytest.raises(Impossible, match="shards alone"):
        bearable(asked, ROUND | {"shard_idle": 100_000.0}, 3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--rate 0", "--rate: must be above 0"),
        ("--rate=-5", "--rate: must be above 0"),
        ("--rate nan", "--rate: must be above 0"),
        ("--pending=-1", "--pending: must be 0 or more"),
        ("--rearmed 1.5", "--rearmed: must be from 0 to 1"),
        ("--payload=-1", "--payload: must be a whole number of 0 or more"),
        ("--batch 0", "--batch: must be a whole number of 1 or more"),
        ("--request x", "--request: must be a whole number of 1 or more"),
        ("--share 0", "--share: must be above 0, and at most 1"),
        ("--spare=-1", "--spare: must be a whole number of 0 or more"),
        ("--replicas 2", "--replicas: invalid choice"),
        ("--nats-cores 0", "--nats-cores: must be a whole number of 1 or more"),
        ("--shards 0", "--shards: must be from 1 to 1024"),
        ("--nodes 0", "--nodes: must be a whole number of 1 or more"),
        ("--nodes 3 --rate 5", "not allowed with argument"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(given: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        model.main(given.split())
    assert refused.value.code == 2
    assert said in capsys.readouterr().err


def test_the_model_needs_nothing_that_only_tests_need() -> None:
    code = "import sys; sys.modules['pytest'] = None; from benchmarks import model; model.main(['--nodes', '3'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "3 nodes bear" in done.stdout
    code = "import sys; sys.argv = ['benchmarks', 'model', '--help']; import runpy; sys.modules['pytest'] = None; "
    code += "runpy.run_module('benchmarks', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "how busy nodes, NATS servers and disks may be (0.6)" in " ".join(done.stdout.split())


LOADS = st.builds(
    Load,
    rate=st.floats(1, 2e5),
    pending=st.floats(0, 1e9),
    rearmed=st.floats(0, 1),
    payload=st.integers(0, 60_000),
    batch=st.integers(200, 10_000),  # much smaller ones can't be had at every rate
    request=st.integers(500, 10_000),
    routed=st.booleans(),
    share=st.floats(0.4, 0.9),
    spare=st.integers(0, 3),
    replicas=st.sampled_from([1, 3, 5]),
    nats_cores=st.integers(1, 16),
    shards=st.none(),
)


BUSY = ROUND | {"node_message": 200.0, "shard_idle": 1_000.0, "nats_shard_idle": 500.0, "frame_message": 140.0}


@given(LOADS)
def test_one_may_be_missing_and_more_never_takes_less(load: Load) -> None:
    found = plan(load, BUSY)
    assert found.nodes > load.spare
    assert found.node_cores <= found.node_cores_short * 1.0001  # what is forwarded depends on how many there are
    assert found.node_cores_short <= load.share
    assert found.shards >= found.nodes
    assert found.messages_a_stream * found.shards == pytest.approx(found.messages)
    assert found.syncs <= load.share * BUSY["syncs"] * (1 + 1e-9)
    more = plan(load._replace(rate=2 * load.rate, pending=2 * load.pending), BUSY)
    assert more.nodes >= found.nodes
    assert more.cores > found.cores
    assert more.bytes > found.bytes
    assert more.nats_servers >= found.nats_servers
    assert more.disk * more.nats_servers >= found.disk * found.nats_servers


def test_every_constant_says_where_it_comes_from() -> None:
    assert len({each.name for each in CONSTANTS}) == len(CONSTANTS)
    for each in CONSTANTS:
        assert each.benchmark in NAMES or (ROOT / each.benchmark).is_file(), each
        assert each.value >= 0
        assert each.unit
        assert each.figure
    assert ROUND.keys() == MEASURED.keys()


async def test_constants_that_need_no_clock_are_as_the_code_is() -> None:
    known = {each.name: each for each in CONSTANTS}
    found = await frames.run(Place(None, 0))
    for each in CONSTANTS:
        if each.benchmark == "frames":
            assert each.value == pytest.approx(found[each.figure][0], rel=1e-3)
    for payload, what in ((100, "in a slice"), (500, "armed"), (500, "fired and re-armed")):
        measured = found[f"frame bytes of a timer {what}, a payload of {payload} bytes"][0]
        assert frame_bytes(payload, MEASURED) == pytest.approx(measured, rel=0.02)
    assert known["segment"].value == SEGMENT_BYTES
    assert known["dead"].value == DEAD_MS / 1000
    assert known["lease"].value == Config().cluster_lease


def test_figures_are_taken_by_name_and_in_the_unit_of_the_constant() -> None:
    constants = model.read()
    said = model.take(
        constants, [Figure("1 node: idle: memory of a node", "MB", [80, 90, 85]), Figure("else", "", [1])], "now"
    )
    assert len(said) == 1
    (taken,) = [each for each in constants if each.name == "memory_node"]
    assert (taken.value, taken.when) == (85e6, "now")


def test_the_page_shows_what_the_model_says_now() -> None:
    page = model.PAGE.read_text()
    assert page.count("<!-- python -m benchmarks model") == page.count("<!-- end -->") >= 3
    assert model.renewed(page, CONSTANTS) == page, "python -m benchmarks model --take FIGURES.json renews it"
