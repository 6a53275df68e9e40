public import ApusClient
import ApusContract
public import ApusCore
import ApusCrypto
import ApusTLS
import Foundation
public import Logging
import NIOCore
import NIOPosix
import SwiftProtobuf
import Synchronization

/// Lets apps in the same network change the settings of a device while the cluster cannot be reached (IV-D14,
/// docs/local-access.md).
///
/// An app asks for access through the cluster, which checks its right to control the device. While the device reaches
/// the cluster, it asks before each change whether the app still has that right. While it does not, the access is valid
/// until it expires.
///
/// Isolation: `Sendable`; ``run()`` is called once.
public final class LocalControl: Sendable {
    public struct Configuration: Sendable {
        /// Where the device listens. Port 0: any.
        public var bind = HostPort(host: "0.0.0.0", port: 0)
        /// How long access is valid, at most. It also ends with the token of the client.
        public var lifetime: Duration = .seconds(24 * 3600)
        /// A file that keeps the device's secret, so that access survives a restart. It is made if there is none, for
        /// this user alone. Nil: a restart ends all access.
        public var secretFile: String?
        /// Connections at once. One more closes the oldest one of the address that has the most.
        public var connectionsMax = 16
        /// The time from the connect to the end of a change.
        public var connectionTimeout: Duration = .seconds(10)
        /// How long the device tries to reach the cluster, which says whether a client has the right, before it goes by
        /// the access alone. After that it tries once for each change, for ten seconds.
        public var checkTimeout: Duration = .seconds(2)
        public init() {}
    }

    private let session: ClientSession
    private let settings: DeviceSettings
    private let configuration: Configuration
    private let grants: LocalGrants
    private let tls: TLSServerContext
    private let log: Logger
    private let port = Mutex<Int?>(nil)
    private struct State: Sendable {
        /// Changes in progress, also of connections that have closed.
        var changeCount = 0
        /// The cluster was not reached: until then it is tried once.
        var unreachableUntil = MonotonicTime.zero
    }
    private let state = Mutex(State())
    private static let checkPause = Duration.seconds(10)
    /// Clocks of devices differ from one start to the next.
    private static let clockSlack = Duration.seconds(300)
    /// Bounded by the connections, and by the changes in progress.
    private let work: AsyncStream<@Sendable () async -> Void>
    private let workFeed: AsyncStream<@Sendable () async -> Void>.Continuation

    /// - Parameters:
    ///   - session: the device's own.
    ///   - commands: takes the requests for access.
    ///   - settings: those that apps may change. They are applied and reported as if they were changed at the device.
    /// - Throws: 10022 if the file of the secret cannot be used.
    public init(
        session: ClientSession, device: DeviceID, commands: DeviceCommands, settings: DeviceSettings,
        configuration: Configuration = Configuration(), log: Logger
    ) throws(ApusError) {
        (self.session, self.settings, self.configuration, self.log) = (session, settings, configuration, log)
        (work, workFeed) = AsyncStream.makeStream()
        let grants = try LocalGrants(secret: try Self.secret(configuration.secretFile), of: device)
        self.grants = grants
        let lifetime = Self.lifetime(configuration)
        do {
            tls = try TLSServerContext(sharedKeys: { grants.key(of: $0, at: Self.now, lifetime: lifetime) })
        } catch {
            throw ApusError(.internalFailure, "local access is not available: \(error)")
        }
        commands.onDelivery(ClientCheckLocalAccessRequest.action) { [self] delivery throws(ApusError) in
            try grant(delivery)
        }
    }

    /// Listens until the task is cancelled.
    ///
    /// - Throws: 10019 if the address cannot be bound, 10006 at the end.
    public func run() async throws(ApusError) {
        let loop = MultiThreadedEventLoopGroup.singleton.next()
        let connections = LocalConnections(loop, countMax: configuration.connectionsMax)
        do {
            let listener = try await ServerBootstrap(group: loop)
                .serverChannelOption(.backlog, value: CInt(configuration.connectionsMax))
                .serverChannelOption(.socketOption(.so_reuseaddr), value: 1)
                .childChannelOption(.maxMessagesPerRead, value: 1)
                .childChannelInitializer { [self] channel in
                    channel.eventLoop.makeCompletedFuture { try add(channel, to: connections) }
                }
                .bind(host: configuration.bind.host, port: configuration.bind.port).get()
            port.withLock { $0 = listener.localAddress?.port }
            log.info(
                "Apps in this network can change settings", metadata: ["apus.address": "\(addresses.first ?? "?")"])
            // Ends when the task is cancelled.
            await withDiscardingTaskGroup { group in
                for await piece in work { group.addTask { await piece() } }
            }
            port.withLock { $0 = nil }
            listener.close(promise: nil)
            loop.execute { connections.closeAll() }
        } catch {
            throw ApusError(.addressInUse, "local access cannot listen at \(configuration.bind): \(error)")
        }
        throw ApusError(.cancelled)
    }

    private func add(_ channel: any Channel, to connections: LocalConnections) throws {
        let secured = TLSHandler(tls)
        let handler = LocalConnectionHandler(
            secured, timeout: configuration.connectionTimeout, spawn: { [workFeed] in workFeed.yield($0) }
        ) { [self] hello, request, identity throws(ApusError) in
            try await change(request, by: hello, identity)
        }
        try channel.pipeline.syncOperations.addHandlers([secured, handler])
        connections.add(channel)
    }

    // MARK: - Access

    private static var now: Int64 { Int64(Date().timeIntervalSince1970) }

    private func grant(_ delivery: ClientCommandDelivery) throws(ApusError) -> String {
        guard let request = try? JSONDecoder().decode(LocalAccess.Request.self, from: Data(delivery.json.utf8)) else {
            throw ApusError(.jsonInvalid, "a public key is expected")
        }
        guard !delivery.user.isEmpty, port.withLock({ $0 }) != nil else {
            throw ApusError(.deviceBusy, "this device does not offer local access now")
        }
        let expires = min(Self.now + configuration.lifetime.components.seconds, delivery.userExpiresS)
        guard expires > Self.now else {
            throw ApusError(.actionFailed, "the token has expired by the clock of the device")
        }
        let owner = Self.owner(delivery.user, delivery.userExpiresS)
        let (identity, key) = try grants.grant(to: request.key, owner: owner, expires: expires)
        let grant = LocalAccess.Grant(
            key: key, identity: identity, addresses: addresses, expires: expires, user: delivery.user,
            userExpires: delivery.userExpiresS)
        guard let answer = try? JSONEncoder().encode(grant) else { throw ApusError(.internalFailure) }
        log.notice("A client received local access", metadata: ["apus.access": "\(delivery.sender)"])
        return String(decoding: answer, as: UTF8.self)
    }

    private static func owner(_ user: String, _ expires: Int64) -> String { "\(expires) \(user)" }

    /// Where apps reach this device: the address that it listens at, or all of its addresses.
    private var addresses: [String] {
        guard let port = port.withLock({ $0 }) else { return [] }
        guard ["0.0.0.0", "::"].contains(configuration.bind.host) else {
            return [HostPort(host: configuration.bind.host, port: port).description]
        }
        let found = (try? System.enumerateDevices()) ?? []
        let hosts = found.compactMap(\.address?.ipAddress).filter {
            // Without loopback, and without link-local addresses of IPv6, which need a zone.
            !$0.hasPrefix("127.") && $0 != "::1" && !$0.hasPrefix("fe80:")
                && (configuration.bind.host == "::" || !$0.contains(":"))
        }
        return hosts.prefix(Self.addressesMax).map { HostPort(host: $0, port: port).description }
    }
    private static let addressesMax = 8

    // MARK: - Changes

    private func change(
        _ request: ClientLocalWriteRequest, by hello: ClientLocalHello, _ identity: String
    ) async throws(ApusError) -> String {
        guard hello.version == 1 else {
            throw ApusError(.versionUnsupported, "this device supports version 1 of local access")
        }
        guard grants.isGranted(identity, to: Self.owner(hello.user, hello.expiresS)) else {
            throw ApusError(.deviceTokenRefused, "the access was granted to another client")
        }
        let (name, json) = try LocalWrite.setting(request.path, request.json)
        let hasRoom = state.withLock { state in
            guard state.changeCount < configuration.connectionsMax else { return false }
            state.changeCount += 1
            return true
        }
        guard hasRoom else { throw ApusError(.deviceBusy, "too many changes are in progress") }
        defer { state.withLock { $0.changeCount -= 1 } }
        try await check(hello)
        // The time may have passed while the cluster was asked.
        guard grants.key(of: identity, at: Self.now, lifetime: lifetime) != nil else {
            throw ApusError(.deviceTokenRefused, "the access is over")
        }
        let value = try await settings.write(name, json: json)
        log.notice("A setting was changed in the local network", metadata: ["apus.setting": "\(name)"])
        return value
    }

    /// The errors of a cluster that cannot be reached: no node, or one that has died since it was asked.
    private static let unreachable: Set<ErrorCode> = [
        .notConnected, .linkLost, .sendFailed, .answerTimedOut, .unavailable,
    ]

    /// Asks the cluster whether the client still has the right, if it can be reached.
    private func check(_ hello: ClientLocalHello) async throws(ApusError) {
        let request = ClientCheckLocalAccessRequest.with { ($0.user, $0.expiresS) = (hello.user, hello.expiresS) }
        do throws(ApusError) {
            let (now, timeout) = (MonotonicTime.now(), configuration.checkTimeout)
            if now < state.withLock({ $0.unreachableUntil }) {
                _ = try await session.ask(request, timeout: timeout)
            } else {
                _ = try await session.repeating(until: now + timeout) { [session] left throws(ApusError) in
                    do throws(ApusError) {
                        return try await session.ask(request, timeout: left)
                    } catch {
                        // A node was reached, and does not know: this is no reason to go by the access alone.
                        throw error.code == .deadlineExceeded ? ApusError(.deviceBusy, error.message) : error
                    }
                }
            }
            state.withLock { $0.unreachableUntil = .zero }
        } catch {
            guard Self.unreachable.contains(error.code) else { throw error }
            state.withLock { $0.unreachableUntil = .now() + Self.checkPause }
            log.notice("The cluster cannot be asked for a client's right", metadata: Logger.facts(of: error))
        }
    }

    /// Of access that was granted by a correct clock: an expiry that is farther away says that the clock is behind.
    private var lifetime: Int64 { Self.lifetime(configuration) }

    private static func lifetime(_ configuration: Configuration) -> Int64 {
        (configuration.lifetime + clockSlack).components.seconds
    }

    // MARK: - The secret

    private static func secret(_ file: String?) throws(ApusError) -> [UInt8] {
        let new = SymmetricKey.random().withUnsafeBytes { [UInt8]($0) }
        guard let file else { return new }
        if let found = FileManager.default.contents(atPath: file) { return [UInt8](found) }
        guard PrivateFile.create(file, new) else {
            throw ApusError(.configurationInvalid, "the secret of local access cannot be written to \(file)")
        }
        return new
    }
}

/// The open connections of a listener.
///
/// Concurrency model: confined to its event loop.
private final class LocalConnections: @unchecked Sendable {  // SAFETY: confined to `loop`.
    private let loop: any EventLoop
    private let countMax: Int
    /// Oldest first.
    private var open: [(channel: any Channel, address: String)] = []

    init(_ loop: any EventLoop, countMax: Int) { (self.loop, self.countMax) = (loop, countMax) }

    /// Beyond the limit, the oldest connection of the address that has the most is closed, so that one host that holds
    /// connections keeps no other out.
    func add(_ channel: any Channel) {
        loop.assertInEventLoop()
        open.append((channel, channel.remoteAddress?.ipAddress ?? ""))
        channel.closeFuture.assumeIsolated().whenComplete { [self] _ in open.removeAll { $0.channel === channel } }
        guard open.count > countMax else { return }
        let counts = Dictionary(grouping: open, by: \.address).mapValues(\.count)
        let most = counts.values.max()
        guard let index = open.firstIndex(where: { counts[$0.address] == most }) else { return }
        open.remove(at: index).channel.close(promise: nil)
    }

    func closeAll() {
        for entry in open { entry.channel.close(promise: nil) }
    }
}
