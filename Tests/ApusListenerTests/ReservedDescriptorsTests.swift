import ApusCore
import ApusListener
import ApusTestKit
import Logging
import NIOCore
import NIOPosix
import Testing

#if canImport(Glibc)
import Glibc
#endif

@Suite("Listeners without descriptors", .timeLimit(.minutes(1)))
struct ReservedDescriptorsTests {
    private let limited = LogLimiter(Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })

    /// A listening channel that does not read by itself, so that connections wait.
    private func listen(_ listener: ListenerGuard?) async throws -> any Channel {
        try await ServerBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .serverChannelOption(.autoRead, value: listener != nil)
            .serverChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    if let listener { try channel.pipeline.syncOperations.addHandler(listener) }
                }
            }
            .bind(host: "127.0.0.1", port: 0).get()
    }

    private func connect(_ listening: any Channel) async throws -> any Channel {
        try await ClientBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .connect(to: try #require(listening.localAddress)).get()
    }

    private func refuse(_ listening: any Channel, _ reserve: ReservedDescriptors) async throws -> Int {
        try await listening.eventLoop.submit {
            try listening.pipeline.syncOperations.withUnsafeTransportIfAvailable(of: CInt.self) {
                reserve.refuse(waitingAt: $0)
            } ?? -1
        }.get()
    }

    @Test("Connections that wait are closed, all at once; there is nothing to do where none waits")
    func refusal() async throws {
        let listening = try await listen(nil)
        let reserve = ReservedDescriptors()
        var clients: [any Channel] = []
        for _ in 0..<20 { clients.append(try await connect(listening)) }
        #expect(try await refuse(listening, reserve) == 20)
        for client in clients { try await client.closeFuture.get() }
        #expect(try await refuse(listening, reserve) == 0)
        try await listening.close()
    }

    @Test("What was given up comes back")
    func refill() {
        let reserve = ReservedDescriptors(count: 2)
        #expect(reserve.release())
        #expect(reserve.release())
        #expect(!reserve.release())
        #expect(reserve.refill())
        #expect(reserve.release())
    }

    @Test("The listener is told of exhaustion: it refuses what waits, pauses, and serves again by itself")
    func pause() async throws {
        let listening = try await listen(
            ListenerGuard(listener: "test", reserve: ReservedDescriptors(), log: limited))
        let loop = listening.eventLoop
        // On the loop, so that the listener cannot have taken the connection before the error comes.
        let socket = try await loop.submit { () -> CInt in
            let address = try #require(listening.localAddress)
            let socket = Glibc.socket(AF_INET, CInt(SOCK_STREAM.rawValue), 0)
            let result = address.withSockAddr { Glibc.connect(socket, $0, socklen_t($1)) }
            #expect(result == 0)
            listening.pipeline.fireErrorCaught(IOError(errnoCode: EMFILE, reason: "accept"))
            return socket
        }.get()
        defer { _ = Glibc.close(socket) }
        #expect(try await listening.getOption(ChannelOptions.autoRead).get() == false)
        var byte: UInt8 = 0
        // The refused client hears its end.
        #expect(recv(socket, &byte, 1, 0) <= 0)
        try await eventually("the listener reads again") {
            try await listening.getOption(ChannelOptions.autoRead).get()
        }
        let client = try await connect(listening)
        #expect(client.isActive)
        try await client.close()
        try await listening.close()
    }

    @Test("Open descriptors are counted, and the limit is above them")
    func count() throws {
        let before = try #require(DescriptorLimit.inUse())
        let open = (0..<200).map { _ in dup(0) }
        // Other tests of this process open and close some at the same time.
        #expect(try #require(DescriptorLimit.inUse()) >= before + 100)
        for descriptor in open { _ = Glibc.close(descriptor) }
        #expect(DescriptorLimit.raise() == DescriptorLimit.current)
        #expect(DescriptorLimit.current > before)
    }
}
