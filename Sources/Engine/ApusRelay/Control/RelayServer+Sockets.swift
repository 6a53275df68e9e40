import ApusCore
import ApusTraversal
import Logging

/// The sockets of allocations: the choice of ports, their limit, and the handling of exhaustion.
extension RelayServer {
    /// The result of opening a relayed address.
    private enum Attempt {
        case opened(Opened)
        /// The ports that were tried are in use.
        case noPort
        /// There is no descriptor or memory for a socket. Another port would not help.
        case exhausted(ApusError)
    }

    mutating func close(_ relay: Opened?) {
        guard let relay else { return }
        giveBackPorts(of: relay)
        RelaySocket.close(relay.socket)
        if let second = relay.second { RelaySocket.close(second.socket) }
    }

    /// Closes what was opened for a request that failed.
    mutating func closeOpened(_ request: UInt32) {
        guard let relay = opened.removeValue(forKey: request) else { return }
        if relay.second != nil { secondCount -= 1 }
        close(relay)
    }

    /// Closes one family of an allocation that has both.
    mutating func closeFamily(
        _ id: AllocationID, _ family: TransportAddress.Family,
        _ commands: inout [(plane: UInt8, command: PlaneCommand)]
    ) {
        guard var place = installed[id.rawValue], let second = place.relay.second else { return }
        let isSecond = second.address.family == family
        giveBackPort(of: isSecond ? second.address : place.relay.address, isTCP: place.relay.isTCP)
        if !isSecond { (place.relay.socket, place.relay.address) = second }
        place.relay.second = nil
        secondCount -= 1
        installed[id.rawValue] = place
        commands.append((place.plane, .closeFamily(allocation: id.rawValue, family)))
    }

    /// Makes the ports of an allocation available again.
    mutating func giveBackPorts(of relay: Opened) {
        for address in relay.addresses { giveBackPort(of: address, isTCP: relay.isTCP) }
    }

    private mutating func giveBackPort(of address: TransportAddress, isTCP: Bool) {
        ports[PortPool.Key(host: address.host, isTCP: isTCP)]?.give(back: address.port)
    }

    private var socketCount: Int { opened.count + installed.count + reserved.count + secondCount }

    mutating func open(_ opening: RelayOpening, _ now: MonotonicTime) -> [TurnAction] {
        if let token = opening.reserved, let kept = reserved.removeValue(forKey: token) {
            opened[opening.request] = kept
            return machine.relayOpened(
                opening.request, addresses: [addresses.externals.external(of: kept.address)], at: now)
        }
        guard let family = opening.families.first, let host = addresses.hosts.first(where: { $0.family == family })
        else { return machine.relayFailed(opening.request, .familyUnsupported, at: now) }
        switch openPort(family, opening) {
        case .opened(var relay):
            // The second family is optional. The client is notified if it is missing (RFC 8656 §7.2).
            if opening.families.count > 1, case .opened(let second) = openPort(opening.families[1], opening) {
                relay.second = (second.socket, second.address)
                secondCount += 1
            }
            opened[opening.request] = relay
            return machine.relayOpened(
                opening.request, addresses: relay.addresses.map { addresses.externals.external(of: $0) }, at: now)
        case .noPort:
            metrics.refused("ports")
            limited.log(
                .warning, "No port is free for an allocation",
                metadata: [LogKey.address: "\(host.hostDescription)"], now: now)
        case .exhausted(let error):
            metrics.refused("descriptors")
            limited.log(
                .warning, "An allocation is refused: there is no descriptor or memory for its socket",
                metadata: Logger.facts(of: error), now: now)
        }
        return machine.relayFailed(opening.request, .noCapacity, at: now)
    }

    /// A random port of one of the family's addresses, or of another one if that has no port left.
    private mutating func openPort(_ family: TransportAddress.Family, _ opening: RelayOpening) -> Attempt {
        for host in addresses.hosts.filter({ $0.family == family }).shuffled(using: &random) {
            let attempt = openPort(host, opening)
            guard case .noPort = attempt else { return attempt }
        }
        return .noPort
    }

    /// A random port, so that it cannot be guessed (RFC 8656 §7.2); even, or with its successor, if requested.
    private mutating func openPort(_ host: TransportAddress, _ opening: RelayOpening) -> Attempt {
        let needed = opening.reserveNextAs == nil ? 1 : 2
        guard socketCount + needed <= addresses.socketsMax else {
            return .exhausted(
                ApusError(.overloaded, "allocations have all \(addresses.socketsMax) descriptors of their share"))
        }
        let isTCP = opening.isTCP
        let key = PortPool.Key(host: host.host, isTCP: isTCP)
        // Removed from the dictionary, so that it is changed in place.
        var pool = ports.removeValue(forKey: key) ?? PortPool(addresses.ports)
        // Ports that another process uses are tried once each.
        var foreign: [UInt16] = []
        defer {
            for port in foreign { pool.give(back: port) }
            ports[key] = pool
        }
        if let port = opening.preferredPort, addresses.ports.contains(port) {
            switch open(host, port, isTCP) {
            case .opened(let relay):
                pool.take(port)
                return .opened(relay)
            case .exhausted(let error): return .exhausted(error)
            case .noPort: break
            }
        }
        let kind: PortPool.Wish = opening.reserveNextAs != nil ? .pair : opening.isEvenPort ? .even : .any
        for _ in 0..<addresses.triesMax {
            guard let port = pool.take(kind, using: &random) else { return .noPort }
            foreign.append(port)
            let relay: Opened
            switch open(host, port, isTCP) {
            case .opened(let found): relay = found
            case .exhausted(let error): return .exhausted(error)
            case .noPort: continue
            }
            guard let token = opening.reserveNextAs else {
                foreign.removeLast()
                return .opened(relay)
            }
            if case .opened(let next) = open(host, port + 1, isTCP) {
                reserved[token] = next
                foreign.removeLast()
                pool.take(port + 1)
                return .opened(relay)
            }
            RelaySocket.close(relay.socket)
        }
        return .noPort
    }

    private func open(_ host: TransportAddress, _ port: UInt16, _ isTCP: Bool) -> Attempt {
        let address = host.withPort(port)
        do throws(ApusError) {
            let relay =
                isTCP
                ? try RelaySocket.listen(address)
                : try RelaySocket.open(address, bufferBytes: addresses.bufferBytes)
            return .opened(Opened(socket: relay.socket, address: relay.address, isTCP: isTCP))
        } catch {
            // A port in use is not an error: the caller tries another.
            return error.code == .overloaded ? .exhausted(error) : .noPort
        }
    }
}
