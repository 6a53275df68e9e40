import ApusClient
import ApusContract
import ApusCore
import ApusLocal
import ApusSessions
import Foundation
import NIOCore
import NIOHTTP1
import NIOPosix
import NIOWebSocket
import SwiftProtobuf
import Synchronization

/// Native clients at the first node, each with one request in progress.
final class NativeLoad {
    private let pairs: [(session: ClientSession, device: DeviceID)]

    init(_ stage: APIStage) async throws {
        var pairs: [(ClientSession, DeviceID)] = []
        for client in stage.clients {
            let session = try await stage.session(client.token, .app, at: stage.local.mark.nodes[0].name)
            pairs.append((session, client.device))
        }
        self.pairs = pairs
    }

    func close() { for pair in pairs { pair.session.close() } }

    func run(for seconds: Int) async throws -> BenchAPICommand.Round {
        let start = MonotonicTime.now()
        let end = start + .seconds(seconds)
        let parts = await withTaskGroup(of: (times: [Double], failed: Int).self) { group in
            for pair in pairs {
                let (session, device) = pair
                group.addTask {
                    var times: [Double] = []
                    var failed = 0
                    let request = ClientGetPresenceRequest.with { $0.device = device.rawValue }
                    while MonotonicTime.now() < end {
                        let sent = MonotonicTime.now()
                        do {
                            _ = try await session.ask(request)
                            times.append(Double((MonotonicTime.now() - sent).nanoseconds) / 1000)
                        } catch {
                            failed += 1
                        }
                    }
                    return (times, failed)
                }
            }
            return await group.reduce(into: []) { $0.append($1) }
        }
        return BenchAPICommand.Round(
            times: parts.flatMap(\.times), failed: parts.reduce(0) { $0 + $1.failed },
            seconds: Double((MonotonicTime.now() - start).nanoseconds) / 1e9)
    }
}

/// WebSockets at the first node, each with one request in progress.
final class WebSocketLoad {
    private let connections: [BenchWebSocket]

    init(_ stage: APIStage) async throws {
        var connections: [BenchWebSocket] = []
        for (number, client) in stage.clients.enumerated() {
            // An identity has one session, so these are other apps of the same accounts.
            let token = try await stage.local.mint(
                role: .app, access: AccessID(unchecked: "socket-\(number)"), account: client.account,
                lifetime: .seconds(12 * 3600))
            let request =
                #"{"id":1,"request":"presence.get","body":{"device":"\#(client.device.rawValue)"}}"#
            connections.append(
                try await BenchWebSocket.open(
                    at: try stage.http(0), on: stage.group.next(), token: token, request: request))
        }
        self.connections = connections
    }

    func run(for seconds: Int) async throws -> BenchAPICommand.Round {
        let start = MonotonicTime.now()
        for connection in connections { connection.start(until: start + .seconds(seconds)) }
        try await Task.sleep(for: .seconds(seconds) + .milliseconds(300))
        var times: [Double] = []
        var failed = 0
        for connection in connections {
            let part = try await connection.results()
            times += part.times
            failed += part.failed
        }
        return BenchAPICommand.Round(times: times, failed: failed, seconds: Double(seconds))
    }
}

/// One WebSocket that sends the same request again and again. Confined to its event loop.
final class BenchWebSocket: ChannelInboundHandler, @unchecked Sendable {  // SAFETY: confined to the event loop.
    typealias InboundIn = WebSocketFrame
    typealias OutboundOut = WebSocketFrame

    private let request: ByteBuffer
    private let welcomed: EventLoopPromise<Void>
    private var context: ChannelHandlerContext?
    private var end = MonotonicTime.zero
    private var sent = MonotonicTime.zero
    private var times: [Double] = []
    private var failed = 0
    private let eventLoop: any EventLoop

    private init(request: String, on eventLoop: any EventLoop) {
        self.request = ByteBuffer(string: request)
        self.eventLoop = eventLoop
        welcomed = eventLoop.makePromise()
    }

    static func open(
        at address: HostPort, on eventLoop: any EventLoop, token: String, request: String
    ) async throws -> BenchWebSocket {
        let socket = BenchWebSocket(request: request, on: eventLoop)
        let upgrade = try await ClientBootstrap(group: eventLoop)
            .connect(host: address.host, port: address.port) { channel in
                channel.eventLoop.makeCompletedFuture {
                    let upgrader = NIOTypedWebSocketClientUpgrader<Void> { channel, _ in
                        channel.eventLoop.makeCompletedFuture {
                            try channel.pipeline.syncOperations.addHandler(socket)
                        }
                    }
                    var head = HTTPRequestHead(version: .http1_1, method: .GET, uri: "/v1/ws")
                    head.headers.add(name: "Host", value: address.description)
                    return try channel.pipeline.syncOperations.configureUpgradableHTTPClientPipeline(
                        configuration: .init(
                            upgradeConfiguration: NIOTypedHTTPClientUpgradeConfiguration(
                                upgradeRequestHead: head, upgraders: [upgrader],
                                notUpgradingCompletionHandler: { channel in
                                    channel.eventLoop.makeFailedFuture(ApusError(.connectFailed))
                                })))
                }
            }
        try await upgrade.get()
        let hello = #"{"hello":{"role":"ROLE_APP","token":"\#(token)"}}"#
        try await eventLoop.submit { socket.write(ByteBuffer(string: hello)) }.get()
        try await socket.welcomed.futureResult.get()
        return socket
    }

    func start(until end: MonotonicTime) {
        eventLoop.execute { [self] in
            self.end = end
            (times, failed) = ([], 0)
            send()
        }
    }

    func results() async throws -> (times: [Double], failed: Int) {
        try await eventLoop.submit { [self] in (times, failed) }.get()
    }

    func handlerAdded(context: ChannelHandlerContext) { self.context = context }
    func handlerRemoved(context: ChannelHandlerContext) { self.context = nil }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        let frame = unwrapInboundIn(data)
        guard frame.opcode == .text else { return }
        let text = String(buffer: frame.data)
        if text.hasPrefix("{\"welcome\"") { return welcomed.succeed() }
        if text.hasPrefix("{\"id\":1,\"response\"") {
            times.append(Double((MonotonicTime.now() - sent).nanoseconds) / 1000)
        } else {
            failed += 1
        }
        if MonotonicTime.now() < end { send() }
    }

    private func send() {
        sent = .now()
        write(request)
    }

    private func write(_ text: ByteBuffer) {
        guard let context else { return }
        let key = WebSocketMaskingKey.random()
        context.writeAndFlush(
            wrapOutboundOut(WebSocketFrame(fin: true, opcode: .text, maskKey: key, data: text)), promise: nil)
    }
}
