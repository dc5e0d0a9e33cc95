"""Planted in the log on JetStream: sequences, unknown outcomes, the lease, what is claimed of the servers."""

from typing import Final

from tests.mutations.mutation import Mutation, Pytest, Simulator

NO_SIMULATOR: Final = "a test says it sooner than the cluster's simulator"

PLANTED: Final = (
    Mutation(
        "append-expects-nothing",
        "an append does not say which message it expects to be the last",
        "cluster/timerd_cluster/shard_stream.py",
        'headers = {"Nats-Expected-Last-Sequence": str(expected), message.TURN',
        "headers = {message.TURN",
        Simulator(60, "cluster"),
    ),
    Mutation(
        "other-writer-taken-for-us",
        "whose message it is, is told by epoch and turn alone",
        "cluster/timerd_cluster/message.py",
        "return fields[1:4] + fields[5:6] == [str(ours.epoch), str(ours.lsn), ours.writer, ",
        "return fields[1:3] + fields[5:6] == [str(ours.epoch), str(ours.lsn), ",
        Pytest("tests/cluster/test_two_writers.py", because=NO_SIMULATOR),
    ),
    Mutation(
        "unknown-outcome-taken-for-stored",
        "an append without an answer counts as stored",
        "cluster/timerd_cluster/shard_stream.py",
        """\
            except NoAnswer as error:
                self._unknown(error)""",
        """\
            except NoAnswer as error:
                finding = Finding.OURS
                self._unknown(error)""",
        Simulator(60, "cluster"),
    ),
    Mutation(
        "refused-taken-for-fenced",
        "a refusal counts as fenced, without a look whether the message there is ours",
        "cluster/timerd_cluster/shard_stream.py",
        "                elif error.code not in WRONG_SEQUENCE:\n",
        """\
                elif error.code in WRONG_SEQUENCE:
                    finding = Finding.OTHERS
                else:
""",
        Pytest("tests/cluster/test_unknown_outcome.py", because=NO_SIMULATOR),
    ),
    Mutation(
        "parts-kept-for-the-next-turn",
        "parts that never got their end are read as the beginning of the next turn",
        "cluster/timerd_cluster/message.py",
        "            self._parts.clear()  # of a turn that never got its end\n",
        "            pass\n",
        Pytest("tests/cluster/test_message.py", because=NO_SIMULATOR),
    ),
    Mutation(
        "purge-one-too-far",
        "a purge takes the first message behind the segment along",
        "cluster/timerd_cluster/shard_stream.py",
        '{"seq": sequence + 1}',
        '{"seq": sequence + 2}',
        Pytest("tests/cluster/test_two_writers.py", because=NO_SIMULATOR),
    ),
    Mutation(
        "epoch-goes-on",
        "who takes a stream goes on in the epoch that it has read",
        "cluster/timerd_cluster/shard_stream.py",
        "self.epoch, self.lsn, self.segment = reader.epoch + 1,",
        "self.epoch, self.lsn, self.segment = max(1, reader.epoch),",
        Simulator(60, "cluster"),
    ),
    Mutation(
        "right-without-a-margin",
        "the right to deliver lasts as long as a taker waits",
        "cluster/timerd_cluster/lease.py",
        "right_ms = self.lease_ms - self.lease_ms // MARGIN_PART",
        "right_ms = self.lease_ms",
        Simulator(60, "cluster"),
    ),
    Mutation(
        "no-wait",
        "a taker does not wait for the one before",
        "cluster/timerd_cluster/shard_stream.py",
        "        self.lease.read()\n",
        "",
        Simulator(60, "cluster"),
    ),
    Mutation(
        "right-from-the-last-sending",
        "the right counts from the acknowledgement",
        "cluster/timerd_cluster/lease.py",
        "        self._sent_ms = first_sent_ms\n",
        "        self._sent_ms = self._boot_ms()\n",
        Simulator(60, "cluster"),
    ),
    Mutation(
        "waits-half-a-lease",
        "a taker waits for less than the one before may go on",
        "cluster/timerd_cluster/lease.py",
        "max(0, self._read_ms + self.lease_ms -",
        "max(0, self._read_ms + self.lease_ms // 2 -",
        Simulator(60, "cluster"),
    ),
    Mutation(
        "wait-from-the-first-look",
        "a taker's wait does not begin anew with what the owner writes meanwhile",
        "cluster/timerd_cluster/lease.py",
        "        self._read_ms = self._boot_ms()\n",
        """\
        if not self.has_read:
            self._read_ms = self._boot_ms()
""",
        Simulator(60, "cluster"),
    ),
    Mutation(
        "unknown-sync-claimed",
        "servers that do not say how they sync count as syncing always",
        "cluster/timerd_cluster/servers.py",
        '            return "unknown"\n        if all',
        '            return "always"\n        if all',
        Pytest("tests/cluster/test_servers.py", because=NO_SIMULATOR),
    ),
    Mutation(
        "lost-log-made-anew",
        "a stream that is missing is made, though its shard is known",
        "cluster/timerd_cluster/servers.py",
        "if found[name] is None and (written or not new):",
        "if found[name] is None and written:",
        Pytest("tests/cluster/test_servers.py", because=NO_SIMULATOR),
    ),
)
