package import ApusCore
package import ApusRelay
package import ApusTraversal
package import Logging
import NIOCore
import ServiceLifecycle
import Synchronization

/// Reads the relay's current configuration and keys from their files.
package typealias RelaySource = @Sendable () throws(ApusError) -> (configuration: RelayConfiguration, keys: RelayKeys)

/// The relay of one node as a service: opens the listeners, and closes them when the node stops (D8).
/// Isolation: any thread. The planes and the control thread are threads of the relay's own.
package final class RelayService: Service {
    /// The inputs of the rules for peers.
    private struct Rules {
        /// The configuration with the current lists and ranges: the last one that was read.
        var configuration: RelayConfiguration
        /// The ports of relay addresses, as of the start.
        let relayPorts: ClosedRange<UInt16>
        /// The addresses of the listeners.
        var listeners: [TransportAddress] = []
        /// All addresses of this machine, as of the last read.
        var machine = RelayConfiguration.machineAddresses()
        /// The relay addresses, at which allocations are.
        var relays: [TransportAddress] = []
        /// Their public addresses behind a NAT.
        var externals = ExternalAddresses()

        var peers: PeerPolicy {
            let others = configuration.clusterAddresses
            return PeerPolicy(
                opened: Set(configuration.opened), own: listeners + relays + machine + others,
                relays: relays + others, relayPorts: relayPorts, allowed: configuration.allowed,
                denied: configuration.denied, nat64: configuration.nat64Prefixes, externals: externals)
        }
    }

    private let configuration: RelayConfiguration
    private struct News {
        var take: (@Sendable (RelayNews) -> Void)?
    }

    /// The keys that were read last.
    private let keys: Mutex<RelayKeys>
    /// The resulting orders are given while it is held, so that the control thread receives them in order.
    private let rules: Mutex<Rules>
    private let log: Logger
    /// Identifies this incarnation of the node in tickets; nil for a standalone relay.
    private let node: UInt64?
    /// The name by which clients reach this node; empty if it has none.
    package let domain: String
    private let control = Mutex<RelayControl?>(nil)
    private let news = Mutex(News())
    /// The endpoints to which other nodes redirect their clients.
    private let endpoints = Mutex<[RelayEndpoint]>([])
    private let security = Mutex<EndpointSecurity?>(nil)
    /// The interval at which the certificate's files are checked.
    private static let certificateInterval = Duration.seconds(60)
    /// The interval at which the machine's addresses are read. For that long, a new address may be permitted as a peer
    /// although it must not be.
    private static let machineInterval = Duration.seconds(1)
    private let conditions: NodeConditions?

    /// - Parameters:
    ///   - node: identifies this incarnation of the node in tickets; nil for a standalone relay.
    ///   - domain: the name by which clients reach this node; empty if it has none.
    ///   - conditions: receives the conditions that keep the relay from full service.
    package init(
        configuration: RelayConfiguration, keys: RelayKeys, node: UInt64? = nil, domain: String = "",
        conditions: NodeConditions? = nil, log: Logger
    ) {
        self.configuration = configuration
        self.conditions = conditions
        rules = Mutex(Rules(configuration: configuration, relayPorts: configuration.ports))
        self.keys = Mutex(keys)
        self.node = node
        self.domain = domain
        self.log = log
    }

    /// Issues credentials that this relay accepts.
    package var credentials: RelayCredentials { keys.withLock(\.credentials) }

    /// Sets the receiver of the relay's news. It is called on the control thread and must not block.
    package func onNews(_ take: @escaping @Sendable (RelayNews) -> Void) { news.withLock { $0.take = take } }

    /// Sends an order to the control thread. Returns false if the relay is not running or is overloaded.
    @discardableResult
    package func order(_ order: RelayOrder) -> Bool {
        let control = control.withLock { $0 }
        return control?.order(order) ?? false
    }

    /// Gives up the allocation or mirror of a ticket; nil if there is none.
    package func surrender(_ ticket: MobilityTicket, username: String) async -> AllocationMirror? {
        await withCheckedContinuation { continuation in
            let isTaken = order(
                .surrender(ticket, username: username, answer: { continuation.resume(returning: $0) }))
            if !isTaken { continuation.resume(returning: nil) }
        }
    }

    /// The relay's status; nil if it is not running.
    package func standing() async -> RelayStanding? {
        await withCheckedContinuation { continuation in
            let isTaken = order(.standing { continuation.resume(returning: $0) })
            if !isTaken { continuation.resume(returning: nil) }
        }
    }

    /// The allocations at this node. Throws 21025 if the relay is not running or is overloaded.
    package func sessions(_ selection: RelaySelection) async throws(ApusError) -> RelaySessions {
        let found = await withCheckedContinuation { (continuation: CheckedContinuation<RelaySessions?, Never>) in
            let isTaken = order(.sessions(selection) { continuation.resume(returning: $0) })
            if !isTaken { continuation.resume(returning: nil) }
        }
        guard let found else { throw ApusError(.unavailable, "the relay does not answer") }
        return found
    }

    /// Ends allocations and returns their number. Throws as ``sessions(_:)``.
    package func end(_ selection: RelaySelection) async throws(ApusError) -> Int {
        let count = await withCheckedContinuation { (continuation: CheckedContinuation<Int?, Never>) in
            let isTaken = order(.end(selection) { continuation.resume(returning: $0) })
            if !isTaken { continuation.resume(returning: nil) }
        }
        guard let count else { throw ApusError(.unavailable, "the relay does not answer") }
        log.notice("An operator ended allocations", metadata: [LogKey.count: "\(count)"])
        return count
    }

    /// How long the shutdown of a draining relay waits for its clients.
    var drainWait: Duration { configuration.drainWait }

    /// The endpoints to which other nodes redirect their clients.
    package var endpointsForPeers: [RelayEndpoint] { endpoints.withLock { $0 } }

    /// The relay addresses as peers see them, without ports. Empty until the relay is open.
    package var relayedHosts: [TransportAddress] {
        rules.withLock { rules in rules.relays.map { rules.externals.external(of: $0).host } }
    }

    /// The addresses at which others reach this machine, as of the last read.
    package var outerAddresses: [TransportAddress] {
        rules.withLock(\.machine).filter(RelayConfiguration.isOuter)
    }

    /// Opens the listeners and starts relaying.
    /// - Throws: 10019 if an address is in use, 10022 if no address can be used for relaying, 10018 for any other
    ///   system error.
    package func start() throws(ApusError) {
        let endpoints = try freeEndpoints(configuration.endpoints())
        let hosts = try configuration.relayHosts(endpoints: endpoints)
        var addresses = RelayAddresses(hosts: hosts, ports: configuration.ports)
        addresses.socketsMax = configuration.allocationsMax
        let found = try configuration.findExternalAddresses(hosts: hosts)
        addresses.externals = found.addresses
        if !found.withOtherPorts.isEmpty { warnOfPorts(found.withOtherPorts) }
        let server = RelayServer(
            configuration: turnConfiguration(endpoints: endpoints, addresses: addresses), addresses: addresses,
            userRate: RelayRate(
                bytesPerSecond: UInt64(configuration.quota.bitsPerSecond / 8),
                packetsPerSecond: UInt64(configuration.quota.packetsPerSecond)),
            nodeShares: NodeShares(rate: configuration.nodeRate, planeCount: configuration.planeCount),
            linesPerSecond: configuration.bounds.logLinesPerSecond, log: log,
            tell: { [weak self] said in self?.news.withLock { $0.take }?(said) })
        var plane = PlaneConfiguration(datagramAddresses: endpoints, streamAddresses: endpoints)
        plane.externals = addresses.externals
        plane.proxies = configuration.proxies
        plane.nodeRate = configuration.nodeRate.share(of: configuration.planeCount)
        try secure(&plane)
        configuration.bounds.apply(to: &plane)
        plane.allocationsMax = configuration.allocationsMax
        plane.peersMax = configuration.tcpPeersMax
        plane.peerErrorsPerSecondMax = configuration.peerErrorsPerSecond
        plane.connectedFlowsMax = configuration.connectedFlowsMax
        plane.restMicroseconds = configuration.restMicroseconds
        let threadCount = configuration.planeCount
        plane.streamsMax = configuration.bounds.streamsPerThread(of: configuration.streamsMax, threads: threadCount)
        plane.streamBudget = StreamBudget(countMax: configuration.streamsMax)
        let started = try RelayControl(planeCount: threadCount, configuration: plane) { _, _ in server }
        control.withLock { $0 = started }
        self.endpoints.withLock { $0 = configuration.endpointsForPeers(of: started, addresses.externals) }
        log.notice(
            "The relay is open",
            metadata: [
                LogKey.address: "\(started.planes[0].datagramAddresses.map(\.description).joined(separator: " "))",
                LogKey.count: "\(started.planes.count)",
            ])
        if !addresses.externals.isEmpty {
            let pairs = addresses.externals.pairs.map { "\($0.external.hostDescription)/\($0.local.hostDescription)" }
            log.notice(
                "The relay uses its public addresses",
                metadata: [LogKey.address: "\(pairs.joined(separator: " "))"])
        }
        let secretCount = credentials.current.count
        if secretCount < RelayConfiguration.secretByteCountSafe {
            log.warning("The relay's secret is short enough to be guessed", metadata: [LogKey.count: "\(secretCount)"])
        }
        warnOfExposedFiles(keys.withLock { $0 })
        let secure = started.planes[0].secureStreamAddresses
        if secure.isEmpty {
            log.notice("The relay has no certificate and opens no TLS or DTLS listener")
        } else {
            log.notice(
                "The relay's TLS and DTLS listeners are open",
                metadata: [LogKey.address: "\(secure.map(\.description).joined(separator: " "))"])
        }
        if !configuration.opened.isEmpty {
            log.warning(
                "The relay permits peers in special ranges",
                metadata: [LogKey.reason: "\(configuration.opened.map(\.rawValue).joined(separator: " "))"])
        }
    }

    private static let portsCondition = NodeConditions.Kind("relay_ports", isUnhealthy: false)

    /// Peers cannot reach relayed addresses whose ports a NAT changes.
    private func warnOfPorts(_ hosts: [TransportAddress]) {
        let names = hosts.map(\.hostDescription).joined(separator: " ")
        log.warning(
            "The NAT changes ports, so peers cannot reach relayed addresses",
            metadata: [LogKey.address: "\(names)"])
        conditions?.raise(
            Self.portsCondition,
            "the NAT of \(names) changes ports, so peers cannot reach relayed addresses: use a 1:1 NAT, or forward the "
                + "relay ports unchanged")
    }

    /// Relays until the node stops.
    package func run() async throws {
        // The threads are the relay's own. Cancellation ends the wait as well as a shutdown does.
        await cancelWhenGracefulShutdown {
            async let machine: Void = self.watchMachine()
            await self.watchCertificate()
            await machine
        }
        await waitUntilEmpty()
        stop()
    }

    /// Waits for a bounded time until the clients of a draining node have finished or moved to another node.
    private func waitUntilEmpty() async {
        let deadline = MonotonicTime.now() + configuration.drainWait
        while let standing = await standing(), standing.isDraining, standing.allocations > 0,
            MonotonicTime.now() < deadline, !Task.isCancelled
        {
            try? await Task.sleep(for: .milliseconds(50))
        }
    }

    /// Checks at intervals whether the certificate's files have changed, and uses the new certificate for new
    /// connections, until the task is cancelled.
    package func watchCertificate() async {
        while (try? await Task.sleep(for: Self.certificateInterval)) != nil {
            guard let security = security.withLock({ $0 }) else { continue }
            do throws(ApusError) {
                guard try security.reload() else { continue }
                log.notice(
                    "The relay read its certificate again",
                    metadata: [LogKey.path: "\(configuration.certificateFile)"])
            } catch {
                log.warning(
                    "The relay's certificate cannot be read again; the old one stays",
                    metadata: Logger.facts(of: error))
            }
        }
    }

    /// Reads the machine's addresses at intervals, until the task is cancelled. A new address is refused as a peer from
    /// then on: otherwise its services would be open to every client.
    private func watchMachine() async {
        while (try? await Task.sleep(for: Self.machineInterval)) != nil {
            // Empty if the system call fails. Then the last addresses stay.
            let machine = RelayConfiguration.machineAddresses()
            let isNew = rules.withLock { rules in
                guard !machine.isEmpty, Set(machine) != Set(rules.machine) else { return false }
                var new = rules
                new.machine = machine
                // If the control thread does not accept it now, it is sent again a second later.
                guard order(.peers(new.peers)) else { return false }
                rules = new
                return true
            }
            if isNew { log.info("The machine's addresses changed", metadata: [LogKey.count: "\(machine.count)"]) }
        }
    }

    /// Closes the listeners and ends every allocation. May be called again.
    package func stop() {
        let control = control.withLock { control -> RelayControl? in
            defer { control = nil }
            return control
        }
        control?.stop()
    }

    /// Applies the secrets, users, lists of peers and certificate of a configuration that was read again. Changes of
    /// other keys need a restart. No allocation ends.
    /// - Throws: 10022 if the certificate cannot be used, or the realm or the certificate's path differs; 10007 if the
    ///   relay is not running or is overloaded. Then nothing has changed.
    package func reload(_ new: RelayConfiguration, _ keys: RelayKeys) throws(ApusError) {
        guard new.realm == configuration.realm else {
            throw ApusError(.configurationInvalid, "relay.realm cannot change while the relay runs")
        }
        guard new.certificateFile == configuration.certificateFile, new.keyFile == configuration.keyFile else {
            throw ApusError(.configurationInvalid, "the certificate's path cannot change while the relay runs")
        }
        let security = security.withLock { $0 }
        let renewal = try security?.renewal()
        let isTaken = rules.withLock { rules in
            var changed = rules
            changed.configuration = new
            let all = RelayRules(credentials: keys.credentials, users: keys.users, peers: changed.peers)
            guard order(.rules(all)) else { return false }
            rules = changed
            return true
        }
        guard isTaken else { throw ApusError(.overloaded, "the relay accepts no orders now") }
        // Only now: if anything could not be read or was not accepted, nothing has changed.
        if let renewal { security?.use(renewal) }
        self.keys.withLock { $0 = keys }
        warnOfExposedFiles(keys)
    }

    /// Warns if every user of the machine can read a secret.
    private func warnOfExposedFiles(_ keys: RelayKeys) {
        for path in keys.exposedFiles {
            log.warning(
                "Every user of the machine can read a file with the relay's secrets",
                metadata: [LogKey.path: "\(path)"])
        }
    }

    private func turnConfiguration(
        endpoints: [TransportAddress], addresses: RelayAddresses
    ) -> TurnServerConfiguration {
        let keys = keys.withLock { $0 }
        var turn = TurnServerConfiguration(credentials: keys.credentials, nonceKey: keys.nonceKey)
        configuration.bounds.apply(to: &turn)
        turn.ticketKey = keys.ticketKey
        turn.users = keys.users
        turn.node = node ?? UInt64.random(in: .min ... .max)
        turn.hasPeers = node != nil
        turn.drainLifetime = configuration.drainLifetime
        turn.mirrorsMax = configuration.mirrorsMax
        turn.peers = rules.withLock { rules in
            (rules.listeners, rules.relays, rules.externals) = (endpoints, addresses.hosts, addresses.externals)
            rules.machine = RelayConfiguration.machineAddresses()
            return rules.peers
        }
        turn.allocationsMax = configuration.allocationsMax
        turn.allocationsPerUserMax = configuration.allocationsPerUserMax
        turn.allocationsPerClusterUserMax = configuration.quota.allocationsMax
        turn.newPeersPerSecond = Double(configuration.quota.newPeersPerSecond)
        turn.newPeerBurst = RelayConfiguration.Quota.newPeerBurst
        turn.permissionsMax = configuration.permissionsMax
        turn.channelsMax = configuration.channelsMax
        turn.lifetimeMin = configuration.lifetimeMin
        turn.isTCPAllowed = configuration.tcpPeersMax > 0
        turn.connectionsPerNodeMax = configuration.tcpPeersMax
        turn.connectionsMax = configuration.tcpPeersPerAllocationMax
        turn.lifetimeMax = configuration.lifetimeMax
        if configuration.isLegacyChannelAllowed { turn.channelNumbers = ChannelDataHeader.legacyChannelNumbers }
        return turn
    }

    /// Adds TLS and DTLS listeners to the planes if there is a certificate.
    /// - Throws: 10019 if an address is in use, 10022 if the certificate cannot be used.
    private func secure(_ plane: inout PlaneConfiguration) throws(ApusError) {
        guard !configuration.certificateFile.isEmpty else { return }
        let read = try EndpointSecurity(certificateFile: configuration.certificateFile, keyFile: configuration.keyFile)
        security.withLock { $0 = read }
        plane.security = read
        plane.handshakesMax = configuration.handshakesMax
        plane.handshakeTimeout = configuration.handshakeTimeout
        plane.sessionsMax = configuration.sessionsMax
        let endpoints = try freeEndpoints(configuration.secureEndpoints())
        (plane.secureStreamAddresses, plane.secureDatagramAddresses) = (endpoints, endpoints)
    }

    /// The listeners that can be opened.
    /// The planes share their ports with each other, and would also share them with another relay of the same user.
    /// Half of the clients would then reach the wrong relay. So each port is first opened once without sharing.
    private func freeEndpoints(_ endpoints: [TransportAddress]) throws(ApusError) -> [TransportAddress] {
        var free: [TransportAddress] = []
        for endpoint in endpoints {
            do throws(ApusError) {
                if endpoint.port != 0 { RelaySocket.close(try RelaySocket.open(endpoint, bufferBytes: 4096).socket) }
                free.append(endpoint)
            } catch {
                // An address that the machine has but cannot use yet, or any more, is no reason to stay closed.
                guard configuration.addresses.isEmpty, error.code != .addressInUse else { throw error }
                var facts = Logger.facts(of: error)
                facts[LogKey.address] = "\(endpoint)"
                log.warning("The relay skips an address of the machine", metadata: facts)
            }
        }
        return free
    }
}

extension RelayConfiguration {
    /// The number of planes.
    var planeCount: Int { max(1, min(64, threadCount == 0 ? System.coreCount : threadCount)) }

    /// The rate limit of all allocations of the node together.
    var nodeRate: RelayRate { RelayRate(bytesPerSecond: UInt64(quota.nodeBitsPerSecond / 8)) }

    /// The listeners for clients, with ports. A client is answered from the address that it wrote to, so each address
    /// of the machine has its own listener.
    package func endpoints() -> [TransportAddress] {
        let loopback = TransportAddress(v4: 0x7f00_0001, port: 0)
        let all = addresses.isEmpty ? Self.outerAddresses() + [loopback] : addresses
        return Self.once(all.map { $0.port == 0 ? $0.withPort(port) : $0 })
    }

    /// The TLS and DTLS listeners: at the same addresses, unless others are configured.
    package func secureEndpoints() -> [TransportAddress] {
        let all = secureAddresses.isEmpty ? endpoints().map(\.host) : secureAddresses
        return Self.once(all.map { $0.port == 0 ? $0.withPort(securePort) : $0 })
    }

    /// The endpoint that is advertised to clients by default: the first one.
    package func firstEndpoint() -> HostPort? {
        guard isEnabled, let endpoint = endpoints().first else { return nil }
        return advertised(endpoint)
    }

    /// The endpoints to which other nodes redirect their clients, in the order in which clients receive them. Loopback
    /// addresses are omitted if there are others.
    func endpointsForPeers(of control: RelayControl, _ externals: ExternalAddresses) -> [RelayEndpoint] {
        guard let plane = control.planes.first else { return [] }
        let all =
            plane.datagramAddresses.map { RelayEndpoint(transport: .udp, address: $0) }
            + plane.streamAddresses.map { RelayEndpoint(transport: .tcp, address: $0) }
            + plane.secureStreamAddresses.map { RelayEndpoint(transport: .tls, address: $0) }
            + plane.secureDatagramAddresses.map { RelayEndpoint(transport: .dtls, address: $0) }
        let outer = all.filter { endpoint in
            switch PeerPolicy.range(of: endpoint.address) {
            case .loopback, .unspecified: false
            default: true
            }
        }
        return (outer.isEmpty ? all : outer).map {
            RelayEndpoint(transport: $0.transport, address: externals.external(of: $0.address))
        }
    }

    /// The same for TLS and DTLS; nil if there is no certificate.
    package func firstSecureEndpoint() -> HostPort? {
        guard isEnabled, !certificateFile.isEmpty, let endpoint = secureEndpoints().first else { return nil }
        return advertised(endpoint)
    }

    /// A listener's advertised address: the public one, if it is configured.
    private func advertised(_ listener: TransportAddress) -> HostPort {
        let hosts = (try? relayHosts(endpoints: endpoints())) ?? []
        let externals = (try? externalAddresses(hosts: hosts)) ?? ExternalAddresses()
        return HostPort(host: externals.external(of: listener).hostDescription, port: Int(listener.port))
    }

    /// The relay addresses: the configured ones, otherwise at most one of each family.
    /// - Throws: 10022 if one is a wildcard address, to which peers cannot reply.
    package func relayHosts(endpoints: [TransportAddress]) throws(ApusError) -> [TransportAddress] {
        let first = [TransportAddress.Family.v4, .v6].compactMap { family in
            let own = endpoints.filter { $0.family == family }
            return (own.first { PeerPolicy.range(of: $0) != .loopback } ?? own.first)?.host
        }
        let hosts = relayAddresses.isEmpty ? first : relayAddresses.map(\.host)
        guard hosts.allSatisfy({ PeerPolicy.range(of: $0) != .unspecified }) else {
            throw ApusError(
                .configurationInvalid,
                "the relay listens at all addresses of the machine: set the addresses that peers reply to in "
                    + "relay.relay_addresses")
        }
        return hosts
    }

    /// All addresses of this machine; empty if the system call fails.
    static func machineAddresses() -> [TransportAddress] {
        let devices = (try? System.enumerateDevices()) ?? []
        return devices.compactMap { device in
            device.address?.ipAddress.flatMap { TransportAddress($0, port: 0) }
        }
    }

    /// The addresses at which others reach this machine.
    static func outerAddresses() -> [TransportAddress] {
        machineAddresses().filter(isOuter)
    }

    static func isOuter(_ address: TransportAddress) -> Bool {
        switch PeerPolicy.range(of: address) {
        case nil, .private, .carrierGrade: true
        default: false
        }
    }
}
