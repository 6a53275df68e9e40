package import ApusCore
package import ApusRelay
package import ApusTraversal
package import Logging
import NIOCore
import ServiceLifecycle
import Synchronization

/// The relay of one node as a service: opens the doors, and closes them when the node leaves (D8).
///
/// Isolation: any thread. The planes and their control have threads of their own.
package final class RelayService: Service {
    /// What the rules for peers are made of.
    private struct Rules {
        /// Whose lists and ranges hold: the one that was read last.
        var configuration: RelayConfiguration
        /// Ports at which relays are, of the start.
        let relayPorts: ClosedRange<UInt16>
        /// Where the relay listens and where allocations are.
        var listeners: [TransportAddress] = []
        /// Every address of this machine, as it was read last.
        var machine = RelayConfiguration.machineAddresses()
        /// Those at which allocations are.
        var relays: [TransportAddress] = []
        /// What they are before a NAT.
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
    /// What was read last.
    private let keys: Mutex<RelayKeys>
    /// Orders that come of it are given while it is held, so that control has them in one order.
    private let rules: Mutex<Rules>
    private let log: Logger
    /// How tickets name this life of this node; nil for a relay that is alone.
    private let node: UInt64?
    /// The name by which clients know this node; empty where it has none.
    package let domain: String
    private let control = Mutex<RelayControl?>(nil)
    private let news = Mutex<(@Sendable (RelayNews) -> Void)?>(nil)
    /// What other nodes tell their clients, where these are to come here.
    private let doors = Mutex<[RelayDoor]>([])
    private let security = Mutex<DoorSecurity?>(nil)
    /// How often the certificate's files are looked at.
    private static let certificateInterval = Duration.seconds(60)
    /// How often the machine's addresses are read: for so long a new one may be a peer that it must not be.
    private static let machineInterval = Duration.seconds(1)
    private let conditions: NodeConditions?

    /// - Parameters:
    ///   - node: how tickets name this life of this node; nil for a relay that is alone.
    ///   - domain: the name by which clients know this node; empty where it has none.
    ///   - conditions: where what keeps the relay from its full service is said.
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

    /// The relay of a cluster's node; nil where the node is to have none.
    ///
    /// - Throws: 10022 for a secret that cannot be read.
    static func make(
        _ configuration: NodeConfiguration, clusterKey: [UInt8], node: NodeID, conditions: NodeConditions, log: Logger
    ) throws(ApusError) -> RelayService? {
        guard configuration.relay.isEnabled else { return nil }
        let keys = try RelayKeys(root: clusterKey, configuration: configuration.relay)
        let name = configuration.advertisedRelay?.host ?? ""
        return RelayService(
            configuration: configuration.relay, keys: keys, node: RelayMesh.tag(of: node),
            domain: TransportAddress(name, port: 0) == nil ? name : "", conditions: conditions, log: log)
    }

    /// What issues the credentials that this relay takes.
    package var credentials: RelayCredentials { keys.withLock(\.credentials) }

    /// Who takes the relay's news, on its control thread; it must hand them on and return.
    package func onNews(_ take: @escaping @Sendable (RelayNews) -> Void) { news.withLock { $0 = take } }

    /// Tells the control thread something; false where the relay does not run or has too much to do.
    @discardableResult
    package func order(_ order: RelayOrder) -> Bool {
        let control = control.withLock { $0 }
        return control?.order(order) ?? false
    }

    /// Gives up what is here of a ticket; nil where nothing is.
    package func surrender(_ ticket: MobilityTicket, username: String) async -> AllocationMirror? {
        await withCheckedContinuation { continuation in
            let isTaken = order(
                .surrender(ticket, username: username, answer: { continuation.resume(returning: $0) }))
            if !isTaken { continuation.resume(returning: nil) }
        }
    }

    /// How the relay stands; nil where it does not run.
    package func standing() async -> RelayStanding? {
        await withCheckedContinuation { continuation in
            let isTaken = order(.standing { continuation.resume(returning: $0) })
            if !isTaken { continuation.resume(returning: nil) }
        }
    }

    /// Allocations that live here. Throws 21025 where the relay does not run or has too much to do.
    package func sessions(_ selection: RelaySelection) async throws(ApusError) -> RelaySessions {
        let found = await withCheckedContinuation { (continuation: CheckedContinuation<RelaySessions?, Never>) in
            let isTaken = order(.sessions(selection) { continuation.resume(returning: $0) })
            if !isTaken { continuation.resume(returning: nil) }
        }
        guard let found else { throw ApusError(.unavailable, "the relay does not answer") }
        return found
    }

    /// Ends allocations, and tells how many. Throws as ``sessions(_:)``.
    package func end(_ selection: RelaySelection) async throws(ApusError) -> Int {
        let count = await withCheckedContinuation { (continuation: CheckedContinuation<Int?, Never>) in
            let isTaken = order(.end(selection) { continuation.resume(returning: $0) })
            if !isTaken { continuation.resume(returning: nil) }
        }
        guard let count else { throw ApusError(.unavailable, "the relay does not answer") }
        log.notice("An operator ended allocations", metadata: [LogKey.count: "\(count)"])
        return count
    }

    /// How long the end of a relay that drains waits for its clients.
    var drainWait: Duration { configuration.drainWait }

    /// What other nodes tell their clients, where these are to come here.
    package var doorsForPeers: [RelayDoor] { doors.withLock { $0 } }

    /// Where allocations are, as peers see them; without ports. Empty until the relay is open.
    package var relayedHosts: [TransportAddress] {
        rules.withLock { rules in rules.relays.map { rules.externals.external(of: $0).host } }
    }

    /// The addresses at which others reach this machine, as they were read last.
    package var outerAddresses: [TransportAddress] {
        rules.withLock(\.machine).filter(RelayConfiguration.isOuter)
    }

    /// Opens the doors and begins to relay.
    ///
    /// - Throws: 10019 where an address is in use, 10022 where no address can be relayed from, 10018 for any other
    ///   refusal of the system.
    package func start() throws(ApusError) {
        let doors = try freeDoors(configuration.doors())
        let hosts = try configuration.relayHosts(doors: doors)
        var addresses = RelayAddresses(hosts: hosts, ports: configuration.ports)
        addresses.socketsMax = configuration.allocationsMax
        let found = try configuration.findExternalAddresses(hosts: hosts)
        addresses.externals = found.addresses
        if !found.withOtherPorts.isEmpty { warnOfPorts(found.withOtherPorts) }
        let server = RelayServer(
            configuration: turnConfiguration(doors: doors, addresses: addresses), addresses: addresses,
            userRate: RelayRate(
                bytesPerSecond: UInt64(configuration.quota.bitsPerSecond / 8),
                packetsPerSecond: UInt64(configuration.quota.packetsPerSecond)),
            nodeShares: NodeShares(rate: configuration.nodeRate, planeCount: configuration.planeCount),
            linesPerSecond: configuration.bounds.logLinesPerSecond, log: log,
            tell: { [weak self] said in self?.news.withLock { $0 }?(said) })
        var plane = PlaneConfiguration(datagramAddresses: doors, streamAddresses: doors)
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
        self.doors.withLock { $0 = configuration.doorsForPeers(of: started, addresses.externals) }
        log.notice(
            "The relay is open.",
            metadata: [
                LogKey.address: "\(started.planes[0].datagramAddresses.map(\.description).joined(separator: " "))",
                LogKey.count: "\(started.planes.count)",
            ])
        if !addresses.externals.isEmpty {
            let pairs = addresses.externals.pairs.map { "\($0.external.hostDescription)/\($0.local.hostDescription)" }
            log.notice(
                "The relay is known by its public addresses.",
                metadata: [LogKey.address: "\(pairs.joined(separator: " "))"])
        }
        let secretCount = credentials.current.count
        if secretCount < RelayConfiguration.secretByteCountSafe {
            log.warning("The relay's secret is short enough to be guessed.", metadata: [LogKey.count: "\(secretCount)"])
        }
        warnOfExposedFiles(keys.withLock { $0 })
        let secure = started.planes[0].secureStreamAddresses
        if secure.isEmpty {
            log.notice("The relay has no certificate, so that its TLS and DTLS doors stay closed.")
        } else {
            log.notice(
                "The relay's TLS and DTLS doors are open.",
                metadata: [LogKey.address: "\(secure.map(\.description).joined(separator: " "))"])
        }
        if !configuration.opened.isEmpty {
            log.warning(
                "The relay sends to peers in special ranges.",
                metadata: [LogKey.reason: "\(configuration.opened.map(\.rawValue).joined(separator: " "))"])
        }
    }

    private static let portsCondition = NodeConditions.Kind("relay_ports", isUnhealthy: false)

    /// Relayed addresses that a NAT gives other ports are none that a peer can reach.
    private func warnOfPorts(_ hosts: [TransportAddress]) {
        let names = hosts.map(\.hostDescription).joined(separator: " ")
        log.warning(
            "The NAT before the relay changes ports, so that peers do not reach relayed addresses",
            metadata: [LogKey.address: "\(names)"])
        conditions?.raise(
            Self.portsCondition,
            "the NAT before \(names) changes ports: peers do not reach relayed addresses; make it 1:1, or forward the "
                + "ports of relays as they are")
    }

    /// Relays until the node leaves.
    package func run() async throws {
        // The threads are the relay's own; a cancellation ends the wait as well as a shutdown.
        await cancelWhenGracefulShutdown {
            async let machine: Void = self.watchMachine()
            await self.watchCertificate()
            await machine
        }
        await waitUntilEmpty()
        stop()
    }

    /// Lets clients of a node that leaves finish, or move to where they are sent, for a bounded time.
    private func waitUntilEmpty() async {
        let deadline = MonotonicTime.now() + configuration.drainWait
        while let standing = await standing(), standing.isDraining, standing.allocations > 0,
            MonotonicTime.now() < deadline, !Task.isCancelled
        {
            try? await Task.sleep(for: .milliseconds(50))
        }
    }

    /// Looks from time to time whether the certificate's files are new, and shows the new one to clients that come
    /// then, until it is cancelled.
    package func watchCertificate() async {
        while (try? await Task.sleep(for: Self.certificateInterval)) != nil {
            guard let security = security.withLock({ $0 }) else { continue }
            do throws(ApusError) {
                guard try security.reload() else { continue }
                log.notice(
                    "The relay's certificate was read anew.",
                    metadata: [LogKey.path: "\(configuration.certificateFile)"])
            } catch {
                log.warning(
                    "The relay's certificate cannot be read anew; that of before stays.",
                    metadata: Logger.facts(of: error))
            }
        }
    }

    /// Reads the machine's addresses from time to time, until it is cancelled. A new one is the machine's own from then
    /// on, and no peer: its services would be open to every client.
    private func watchMachine() async {
        while (try? await Task.sleep(for: Self.machineInterval)) != nil {
            // Empty where the system does not tell: what was known stays.
            let machine = RelayConfiguration.machineAddresses()
            let isNew = rules.withLock { rules in
                guard !machine.isEmpty, Set(machine) != Set(rules.machine) else { return false }
                var new = rules
                new.machine = machine
                // What control does not take now it is told a second later.
                guard order(.peers(new.peers)) else { return false }
                rules = new
                return true
            }
            if isNew { log.info("The machine has other addresses", metadata: [LogKey.count: "\(machine.count)"]) }
        }
    }

    /// Closes the doors and ends every allocation. May be called again.
    package func stop() {
        let control = control.withLock { control -> RelayControl? in
            defer { control = nil }
            return control
        }
        control?.stop()
    }

    /// Takes the secrets, users, lists of peers and certificate of a configuration that was read anew. Every other key
    /// waits for a restart. No allocation ends.
    ///
    /// - Throws: 10022 where the certificate cannot be used, or the realm or the certificate's place is another; 10007
    ///   where the relay does not run or has too much to do. Then nothing has changed.
    package func reload(_ new: RelayConfiguration, _ keys: RelayKeys) throws(ApusError) {
        guard new.realm == configuration.realm else {
            throw ApusError(.configurationInvalid, "relay.realm cannot change while the relay runs")
        }
        guard new.certificateFile == configuration.certificateFile, new.keyFile == configuration.keyFile else {
            throw ApusError(.configurationInvalid, "the certificate cannot get another place while the relay runs")
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
        guard isTaken else { throw ApusError(.overloaded, "the relay takes no orders now") }
        // Only now: nothing has changed where anything could not be read or taken.
        if let renewal { security?.use(renewal) }
        self.keys.withLock { $0 = keys }
        warnOfExposedFiles(keys)
    }

    /// A secret that every user of the machine can read is not taken silently.
    private func warnOfExposedFiles(_ keys: RelayKeys) {
        for path in keys.exposedFiles {
            log.warning(
                "A file with secrets of the relay can be read by every user of the machine",
                metadata: [LogKey.path: "\(path)"])
        }
    }

    private func turnConfiguration(
        doors: [TransportAddress], addresses: RelayAddresses
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
            (rules.listeners, rules.relays, rules.externals) = (doors, addresses.hosts, addresses.externals)
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

    /// Gives the planes their TLS and DTLS doors, where there is a certificate.
    ///
    /// - Throws: 10019 where an address is in use, 10022 where the certificate cannot be used.
    private func secure(_ plane: inout PlaneConfiguration) throws(ApusError) {
        guard !configuration.certificateFile.isEmpty else { return }
        let read = try DoorSecurity(certificateFile: configuration.certificateFile, keyFile: configuration.keyFile)
        security.withLock { $0 = read }
        plane.security = read
        plane.handshakesMax = configuration.handshakesMax
        plane.handshakeTimeout = configuration.handshakeTimeout
        plane.sessionsMax = configuration.sessionsMax
        let doors = try freeDoors(configuration.secureDoors())
        (plane.secureStreamAddresses, plane.secureDatagramAddresses) = (doors, doors)
    }

    /// The doors that can be opened.
    ///
    /// The planes share their ports among themselves, and would share them with another relay of the same user as
    /// well: half of the clients would come to the wrong one. So each is opened once without sharing.
    private func freeDoors(_ doors: [TransportAddress]) throws(ApusError) -> [TransportAddress] {
        var free: [TransportAddress] = []
        for door in doors {
            do throws(ApusError) {
                if door.port != 0 { RelaySocket.close(try RelaySocket.open(door, bufferBytes: 4096).socket) }
                free.append(door)
            } catch {
                // An address that the machine has but does not use yet, or not any more, is no reason to stay closed.
                guard configuration.addresses.isEmpty, error.code != .addressInUse else { throw error }
                var facts = Logger.facts(of: error)
                facts[LogKey.address] = "\(door)"
                log.warning("The relay leaves out an address of the machine.", metadata: facts)
            }
        }
        return free
    }
}

extension RelayConfiguration {
    /// Threads that relay.
    var planeCount: Int { max(1, min(64, threadCount == 0 ? System.coreCount : threadCount)) }

    /// What all allocations of the node may carry together.
    var nodeRate: RelayRate { RelayRate(bytesPerSecond: UInt64(quota.nodeBitsPerSecond / 8)) }

    /// Where clients come, with ports. A client is answered from the address that it wrote to, so that each address of
    /// the machine has a door of its own.
    package func doors() -> [TransportAddress] {
        let loopback = TransportAddress(v4: 0x7f00_0001, port: 0)
        let all = addresses.isEmpty ? Self.outerAddresses() + [loopback] : addresses
        return Self.once(all.map { $0.port == 0 ? $0.withPort(port) : $0 })
    }

    /// Where clients come with TLS and DTLS: at the same addresses, unless others are named.
    package func secureDoors() -> [TransportAddress] {
        let all = secureAddresses.isEmpty ? doors().map(\.host) : secureAddresses
        return Self.once(all.map { $0.port == 0 ? $0.withPort(securePort) : $0 })
    }

    /// What clients are told where the operator says nothing else: the first door.
    package func firstDoor() -> HostPort? {
        guard isEnabled, let door = doors().first else { return nil }
        return told(door)
    }

    /// The doors that other nodes tell their clients of: the address that clients are told first, and none of the
    /// machine alone where there are others.
    func doorsForPeers(of control: RelayControl, _ externals: ExternalAddresses) -> [RelayDoor] {
        guard let plane = control.planes.first else { return [] }
        let all =
            plane.datagramAddresses.map { RelayDoor(transport: .udp, address: $0) }
            + plane.streamAddresses.map { RelayDoor(transport: .tcp, address: $0) }
            + plane.secureStreamAddresses.map { RelayDoor(transport: .tls, address: $0) }
            + plane.secureDatagramAddresses.map { RelayDoor(transport: .dtls, address: $0) }
        let outer = all.filter { door in
            switch PeerPolicy.range(of: door.address) {
            case .loopback, .unspecified: false
            default: true
            }
        }
        return (outer.isEmpty ? all : outer).map {
            RelayDoor(transport: $0.transport, address: externals.external(of: $0.address))
        }
    }

    /// The same with TLS and DTLS; nil where there is no certificate.
    package func firstSecureDoor() -> HostPort? {
        guard isEnabled, !certificateFile.isEmpty, let door = secureDoors().first else { return nil }
        return told(door)
    }

    /// A listener's address as clients are told it: the public one, where the configuration names it.
    private func told(_ listener: TransportAddress) -> HostPort {
        let hosts = (try? relayHosts(doors: doors())) ?? []
        let externals = (try? externalAddresses(hosts: hosts)) ?? ExternalAddresses()
        return HostPort(host: externals.external(of: listener).hostDescription, port: Int(listener.port))
    }

    /// Where relays are: those that are named, otherwise at most one of each family.
    ///
    /// - Throws: 10022 where that is a wildcard, to which no peer can answer.
    package func relayHosts(doors: [TransportAddress]) throws(ApusError) -> [TransportAddress] {
        let first = [TransportAddress.Family.v4, .v6].compactMap { family in
            let own = doors.filter { $0.family == family }
            return (own.first { PeerPolicy.range(of: $0) != .loopback } ?? own.first)?.host
        }
        let hosts = relayAddresses.isEmpty ? first : relayAddresses.map(\.host)
        guard hosts.allSatisfy({ PeerPolicy.range(of: $0) != .unspecified }) else {
            throw ApusError(
                .configurationInvalid,
                "the relay listens at all addresses of the machine: name those that peers answer to in "
                    + "relay.relay_addresses")
        }
        return hosts
    }

    /// Every address of this machine; empty where the system does not tell.
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
