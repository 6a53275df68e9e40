"""A long two-way call, whose recordings are compared with what was sent: see scripts/try-call."""

import argparse
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from local_cluster import Cluster, say

# The most that audio and video of one moment may be apart, in milliseconds.
STEP_MAX = 40.0
# The most packets that a repetition of the clip leaves out at its edges.
EDGE = 4


def make_clip(path, tone):
    """A clip of 17 s whose frames all differ: its tracks do not end together, as those of most files."""
    subprocess.run(
        ["ffmpeg", "-v", "error", "-f", "lavfi", "-i", "testsrc=size=320x240:rate=25", "-f", "lavfi", "-i",
         f"sine=frequency={tone}:beep_factor=4", "-t", "17", "-c:v", "libx264", "-preset", "ultrafast", "-g", "25",
         "-bf", "0", "-pix_fmt", "yuv420p", "-c:a", "aac", path], check=True)


def packets(path):
    """The packets of each track: their times in milliseconds, and a hash of each."""
    done = subprocess.run(
        ["ffprobe", "-v", "error", "-show_data_hash", "sha256", "-show_entries", "packet=codec_type,pts_time,data_hash",
         "-of", "json", path], capture_output=True, text=True, check=True)
    tracks = {"video": [], "audio": []}
    for packet in json.loads(done.stdout)["packets"]:
        tracks[packet["codec_type"]].append((float(packet["pts_time"]) * 1000, packet["data_hash"]))
    return tracks


def place(hashes, window, around):
    """The index of the clip at which so many packets follow, at the first of the places; none if there is none."""
    for index in around:
        if all(hashes[(index + number) % len(hashes)] == digest for number, digest in enumerate(window)):
            return index % len(hashes)
    return None


def compare(track, clip):
    """How far each recorded packet is from its place in the clip, by the number of the clip's repetition.

    A track of a file may be longer than the other one: where the file begins again, a source leaves out the packets of
    the longer track that have no time any more, or the first ones. What is missing elsewhere is counted here, and what
    was lost on the way by the numbers of the frames.
    """
    hashes = [packet[1] for packet in clip]
    digests = [packet[1] for packet in track]
    # A tone has packets that are alike, so a place is that of many packets.
    index = place(hashes, digests[:50], range(len(hashes))) or 0
    offsets, missing, turn = {}, 0, 0
    for number, (pts, digest) in enumerate(track):
        if index == len(hashes):
            index, turn = 0, turn + 1
        if digest != hashes[index]:
            window = digests[number:number + 20]
            found = place(hashes, window, range(EDGE)) if index >= len(hashes) - EDGE or index < EDGE else None
            if found is None:
                found = place(hashes, window, range(len(hashes)))
                missing += 1
                if found is None:
                    index += 1
                    continue
            turn += found < index
            index = found
        offsets.setdefault(turn, []).append(pts - clip[index][0])
        index += 1
    return offsets, missing


def check(recording, clip):
    """The largest distance between audio and video, and what is wrong."""
    found, sent = packets(recording), packets(clip)
    wrong, offsets = [], {}
    for kind in ("video", "audio"):
        offsets[kind], missing = compare(found[kind], sent[kind])
        if missing:
            wrong.append(f"{kind} is not that of the clip in {missing} places")
    worst = 0.0
    # A turn that is recorded in part of one track has the same offset in all its packets.
    for turn in offsets["video"].keys() & offsets["audio"].keys():
        video, audio = offsets["video"][turn], offsets["audio"][turn]
        worst = max(worst, max(audio) - min(video), max(video) - min(audio))
    if worst > STEP_MAX:
        wrong.append(f"audio and video are {worst:.1f} ms apart, at most {STEP_MAX:.0f} ms allowed")
    seconds = (found["video"][-1][0] - found["video"][0][0]) / 1000
    counts = {kind: len(found[kind]) for kind in found}
    return worst, seconds, counts, wrong


def lost(log):
    """The numbers of frames that are missing or doubled in a log of frames."""
    numbers = [json.loads(line)["seq"] for line in pathlib.Path(log).read_text().splitlines()]
    return sum(after != before + 1 for before, after in zip(numbers, numbers[1:]))


def wait(processes, seconds):
    deadline = time.time() + seconds
    for process in processes:
        process.wait(timeout=max(1, deadline - time.time()))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--apus", required=True)
    parser.add_argument("--base-port", type=int, default=27_600)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--no-kills", action="store_true")
    options = parser.parse_args()
    seconds = options.minutes * 60
    with tempfile.TemporaryDirectory(prefix="apus-call-") as directory, contextlib.ExitStack() as stack:
        folder = pathlib.Path(directory)
        for name, tone in [("door", 440), ("phone", 880)]:
            make_clip(folder / f"{name}-clip.mp4", tone)
        cluster = Cluster(options.apus, f"{directory}/cluster", options.base_port)
        say("Starting three nodes.")
        stack.callback(cluster.stop)
        cluster.start()

        def media(name):
            return ["--file", folder / f"{name}-clip.mp4", "--record", folder / f"{name}.mp4", "--log", folder / f"{name}.log",
                    "--json"]

        door = cluster.client("answer", "bell", "--node", "1", "--count", "1", *media("door"))
        time.sleep(2)
        phone = cluster.client("call", "bell", "--node", "2", "--hang-up-after", str(seconds), *media("phone"))
        say(f"A call of {options.minutes:g} minutes.")
        for number in [] if options.no_kills else [1, 2, 3]:
            time.sleep(seconds / 4)
            say(f"kill -9 of node {number}.")
            cluster.run("cluster", "kill", str(number))
            time.sleep(3)
            cluster.run("cluster", "up")
        wait([phone, door], seconds + 60)
        wrong = []
        # Each side has recorded the clip of the other one.
        for name, other in [("door", "phone"), ("phone", "door")]:
            worst, recorded, counts, found = check(folder / f"{name}.mp4", folder / f"{other}-clip.mp4")
            print(f"{name}: {recorded:.1f} s, {counts['video']} frames of video, {counts['audio']} of audio; audio"
                  f" and video at most {worst:.1f} ms apart")
            wrong += [f"{name}: {text}" for text in found]
            if gaps := lost(folder / f"{name}.log"):
                wrong.append(f"{name}: frames are missing or doubled in {gaps} places")
            if recorded < seconds - 2:
                wrong.append(f"{name}: only {recorded:.1f} s were recorded")
    for text in wrong:
        print(f"WRONG  {text}", file=sys.stderr)
    sys.exit(1 if wrong else 0)


main()
