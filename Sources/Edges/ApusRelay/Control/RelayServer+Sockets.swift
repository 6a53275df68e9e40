import ApusCore
import ApusTraversal
import Logging

/// The sockets that allocations relay through: which ports, how many, and what is said where there are none.
extension RelayServer {
    /// How opening a relayed address ended.
    private enum Attempt {
        case opened(Opened)
        /// The ports that were tried are in use.
        case noPort
        /// There is no descriptor or memory for a socket, which another port would not change.
        case exhausted(ApusError)
    }

    func close(_ relay: Opened?) {
        guard let relay else { return }
        RelaySocket.close(relay.socket)
        if let second = relay.second { RelaySocket.close(second.socket) }
    }

    /// Closes what was opened for a request that came to nothing.
    mutating func closeOpened(_ request: UInt32) {
        guard let relay = opened.removeValue(forKey: request) else { return }
        if relay.second != nil { secondCount -= 1 }
        close(relay)
    }

    private var socketCount: Int { opened.count + installed.count + reserved.count + secondCount }

    mutating func open(_ opening: RelayOpening, _ now: MonotonicTime) -> [TurnAction] {
        if let token = opening.reserved, let kept = reserved.removeValue(forKey: token) {
            opened[opening.request] = kept
            return machine.relayOpened(
                opening.request, addresses: [addresses.externals.external(of: kept.address)], at: now)
        }
        let hosts = opening.families.compactMap { family in addresses.hosts.first { $0.family == family } }
        guard let host = hosts.first else {
            return machine.relayFailed(opening.request, .familyUnsupported, at: now)
        }
        switch openPort(host, opening) {
        case .opened(var relay):
            // The second family is a wish; the client hears where it cannot be had (RFC 8656 §7.2).
            if hosts.count > 1, case .opened(let second) = openPort(hosts[1], opening) {
                relay.second = (second.socket, second.address)
                secondCount += 1
            }
            opened[opening.request] = relay
            return machine.relayOpened(
                opening.request, addresses: relay.addresses.map { addresses.externals.external(of: $0) }, at: now)
        case .noPort:
            metrics.refused("ports")
            limited.log(
                .warning, "No port is free for an allocation.",
                metadata: [LogKey.address: "\(host.hostDescription)"], now: now)
        case .exhausted(let error):
            metrics.refused("descriptors")
            limited.log(
                .warning, "An allocation is refused: there is no descriptor or memory for its socket",
                metadata: Logger.facts(of: error), now: now)
        }
        return machine.relayFailed(opening.request, .noCapacity, at: now)
    }

    /// A port by chance, so that it cannot be guessed (RFC 8656 §7.2), even or with its neighbour where asked for.
    private mutating func openPort(_ host: TransportAddress, _ opening: RelayOpening) -> Attempt {
        let needed = opening.reserveNextAs == nil ? 1 : 2
        guard socketCount + needed <= addresses.socketsMax else {
            return .exhausted(
                ApusError(.overloaded, "allocations have all \(addresses.socketsMax) descriptors of their share"))
        }
        let isTCP = opening.isTCP
        if let port = opening.preferredPort, addresses.ports.contains(port) {
            switch open(host, port, isTCP) {
            case .opened(let relay): return .opened(relay)
            case .exhausted(let error): return .exhausted(error)
            case .noPort: break
            }
        }
        for _ in 0..<addresses.triesMax {
            var port = UInt16.random(in: addresses.ports, using: &random)
            if opening.isEvenPort { port &= ~1 }
            guard addresses.ports.contains(port) else { continue }
            let relay: Opened
            switch open(host, port, isTCP) {
            case .opened(let found): relay = found
            case .exhausted(let error): return .exhausted(error)
            case .noPort: continue
            }
            guard let token = opening.reserveNextAs else { return .opened(relay) }
            if port < addresses.ports.upperBound, case .opened(let next) = open(host, port + 1, isTCP) {
                reserved[token] = next
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
            // A port in use is no failure: the caller tries another.
            return error.code == .overloaded ? .exhausted(error) : .noPort
        }
    }
}
