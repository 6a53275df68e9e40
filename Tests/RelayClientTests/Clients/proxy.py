"""A proxy of TCP connections that says who its clients are (PROXY protocol, version 2).

    proxy.py LISTEN_HOST LISTEN_PORT FROM_HOST RELAY_HOST RELAY_PORT

Prints "ready" when it listens; connects to the relay from FROM_HOST.
"""

import asyncio
import socket
import struct
import sys

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
listen_host, listen_port, from_host, relay_host, relay_port = sys.argv[1:6]


def header(client, proxy):
    addresses = socket.inet_aton(client[0]) + socket.inet_aton(proxy[0])
    return SIGNATURE + struct.pack("!BBH", 0x21, 0x11, 12) + addresses + struct.pack("!HH", client[1], proxy[1])


async def pipe(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def take(reader, writer):
    inner, outer = await asyncio.open_connection(relay_host, int(relay_port), local_addr=(from_host, 0))
    outer.write(header(writer.get_extra_info("peername"), writer.get_extra_info("sockname")))
    await asyncio.gather(pipe(reader, outer), pipe(inner, writer))


async def main():
    server = await asyncio.start_server(take, listen_host, int(listen_port))
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


asyncio.run(main())
