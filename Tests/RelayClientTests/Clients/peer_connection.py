"""Two peer connections of aiortc with relay candidates only: a data channel, and a video track.

    peer_connection.py URL_A URL_B USER PASSWORD

Prints one line of JSON: the types of the candidates, the messages that came back and the frames that came.
"""

import asyncio
import json
import sys

from aiortc import (
    RTCConfiguration, RTCIceServer, RTCIceTransportPolicy, RTCPeerConnection, VideoStreamTrack)

MESSAGES = 50
FRAMES = 10


def connection(url, user, password):
    return RTCPeerConnection(RTCConfiguration(
        iceServers=[RTCIceServer(urls=[url], username=user, credential=password)],
        iceTransportPolicy=RTCIceTransportPolicy.RELAY))


def candidate_types(*connections):
    lines = "".join(each.localDescription.sdp for each in connections).splitlines()
    words = [line.split() for line in lines if line.startswith("a=candidate:")]
    return sorted({each[each.index("typ") + 1] for each in words})


async def run(url_a, url_b, user, password):
    a, b = connection(url_a, user, password), connection(url_b, user, password)
    back, all_back, seen = [], asyncio.Event(), asyncio.get_running_loop().create_future()
    channel = a.createDataChannel("test")
    a.addTrack(VideoStreamTrack())

    @channel.on("open")
    def opened():
        for number in range(MESSAGES):
            channel.send(f"message {number} " + "x" * (number * 20))

    @channel.on("message")
    def came_back(message):
        back.append(message)
        if len(back) == MESSAGES:
            all_back.set()

    @b.on("datachannel")
    def offered(theirs):
        theirs.on("message", theirs.send)

    async def watch(track):
        for _ in range(FRAMES):
            await track.recv()
        seen.set_result(FRAMES)

    tasks = []
    b.on("track", lambda track: tasks.append(asyncio.ensure_future(watch(track))))
    await a.setLocalDescription(await a.createOffer())
    await b.setRemoteDescription(a.localDescription)
    await b.setLocalDescription(await b.createAnswer())
    await a.setRemoteDescription(b.localDescription)
    await asyncio.gather(all_back.wait(), seen)
    same = sum(
        text == f"message {number} " + "x" * (number * 20) for number, text in enumerate(back))
    print(json.dumps({"types": candidate_types(a, b), "messages": same, "frames": seen.result()}), flush=True)
    await asyncio.gather(a.close(), b.close())


asyncio.run(asyncio.wait_for(run(*sys.argv[1:5]), 30))
