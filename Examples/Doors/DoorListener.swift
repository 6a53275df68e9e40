import ApusCluster
import ApusCore
import ApusNode
import ApusTransport
import Foundation
import Logging
import NIOCore
import NIOPosix
import ServiceLifecycle
import SwiftProtobuf

/// Step 4: a way in. Any node answers for any door: a request is a line of JSON, and so is its answer.
///
///     {"door": "front", "pass": {}}
///     {"passes":"1"}
///
/// It listens at the ninth port after that of the other nodes' links, on the loopback address alone, and asks nobody
/// who they are: it shows how a service is made, not how one is guarded.
///
/// Isolation: each connection is served by one task, one request after the other.
struct DoorListener: Service {
    /// Connections at once; one more waits in the system's queue.
    private static let connectionsMax = 512
    private static let portOffset = 9

    private let entities: EntityRegistry
    private let port: Int
    private let log: Logger

    init(_ node: NodeContext) {
        entities = node.entities
        port = node.configuration.transport.bind.port + Self.portOffset
        log = node.log
    }

    func run() async throws {
        let server = try await ServerBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .serverChannelOption(.socketOption(.so_reuseaddr), value: 1)
            .bind(host: "127.0.0.1", port: port) { channel in
                channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.addHandler(ByteToMessageHandler(LineDecoder()))
                    return try NIOAsyncChannel<ByteBuffer, ByteBuffer>(wrappingChannelSynchronously: channel)
                }
            }
        log.notice("The doors' listener is open.", metadata: [LogKey.address: "127.0.0.1:\(port)"])
        try await cancelWhenGracefulShutdown {
            try await server.executeThenClose { clients in
                await withDiscardingTaskGroup { group in
                    var iterator = clients.makeAsyncIterator()
                    while let client = try? await iterator.next() { group.addTask { await serve(client) } }
                }
            }
        }
    }

    private func serve(_ client: NIOAsyncChannel<ByteBuffer, ByteBuffer>) async {
        // A connection that breaks is the client's loss: it asks again at any node.
        try? await client.executeThenClose { lines, answers in
            for try await line in lines {
                let answer = await answer(Array(line.readableBytesView))
                var text = try answer.jsonUTF8Bytes() as [UInt8]
                text.append(UInt8(ascii: "\n"))
                try await answers.write(ByteBuffer(bytes: text))
            }
        }
    }

    private func answer(_ line: [UInt8]) async -> DoorAnswer {
        do throws(ApusError) {
            guard let request = try? DoorRequest(jsonUTF8Bytes: line),
                (1...EntityAddress.keyByteCountMax).contains(request.door.utf8.count)
            else { throw ApusError(.malformed, "the line is not a request to a door") }
            return try await carryOut(request)
        } catch {
            return .with {
                $0.error = UInt32(error.code.number)
                $0.message = error.description
            }
        }
    }

    private func carryOut(_ request: DoorRequest) async throws(ApusError) -> DoorAnswer {
        var call = EntityCall()
        call.request = try requestID(request.id)
        let kind = request.recorded ? EntityKind.recordedDoor : .door
        let door = entities.ref(
            EntityCell<DoorState>.self, EntityAddress(kind: kind, key: request.door))
        var answer = DoorAnswer()
        switch request.what {
        case .pass(let pass): answer.passes = try await door.ask(pass, call: call).passes
        case .close(let close): _ = try await door.ask(close, call: call)
        case .look(let look): answer.state = try await door.ask(look)
        case nil: throw ApusError(.malformed, "the request does not say what is to be done")
        }
        return answer
    }

    private func requestID(_ bytes: Data) throws(ApusError) -> RequestID? {
        guard !bytes.isEmpty else { return nil }
        guard bytes.count == 16 else { throw ApusError(.malformed, "a request's id has 16 bytes") }
        var buffer = ByteBuffer(bytes: bytes)
        guard let (high, low) = buffer.readMultipleIntegers(as: (UInt64, UInt64).self) else { return nil }
        return RequestID(high: high, low: low)
    }
}

/// Lines of bounded length; a longer one ends the connection.
private struct LineDecoder: ByteToMessageDecoder {
    typealias InboundOut = ByteBuffer

    private static let byteCountMax = 4096

    mutating func decode(context: ChannelHandlerContext, buffer: inout ByteBuffer) throws -> DecodingState {
        guard let end = buffer.readableBytesView.firstIndex(of: UInt8(ascii: "\n")) else {
            guard buffer.readableBytes <= Self.byteCountMax else { throw ApusError(.frameTooLarge) }
            return .needMoreData
        }
        guard let line = buffer.readSlice(length: end - buffer.readerIndex) else { return .needMoreData }
        buffer.moveReaderIndex(forwardBy: 1)
        context.fireChannelRead(wrapInboundOut(line))
        return .continue
    }
}
