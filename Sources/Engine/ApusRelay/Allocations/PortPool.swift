import ApusTraversal

/// The free ports of one address. Ports are chosen at random, so that they cannot be guessed (RFC 8656 §7.2).
///
/// A port is found as long as one is free, even in a nearly full range. Memory: six bytes for each port of the range.
package struct PortPool: Sendable {
    /// Datagrams and streams have separate ports.
    struct Key: Hashable {
        var host: TransportAddress
        var isTCP: Bool
    }

    package enum Wish: Sendable {
        case any
        /// An even port (EVEN-PORT).
        case even
        /// An even port whose successor is free too.
        case pair
    }

    /// The number of random draws before the free ports are searched for an even one.
    private static let drawsMax = 32

    private let range: ClosedRange<UInt16>
    private var free: [UInt16]
    /// The index of each port in `free`; -1 if it is taken.
    private var places: [Int32]

    package init(_ range: ClosedRange<UInt16>) {
        self.range = range
        free = Array(range)
        places = (0..<Int32(range.count)).map { $0 }
    }

    /// The number of free ports.
    package var count: Int { free.count }

    private func isFree(_ port: UInt16) -> Bool { range.contains(port) && places[Int(port - range.lowerBound)] >= 0 }

    private func fits(_ port: UInt16, _ wish: Wish) -> Bool {
        switch wish {
        case .any: true
        case .even: port & 1 == 0
        case .pair: port & 1 == 0 && isFree(port &+ 1)
        }
    }

    /// Takes a matching port; nil if there is none.
    package mutating func take(_ wish: Wish, using random: inout some RandomNumberGenerator) -> UInt16? {
        guard !free.isEmpty else { return nil }
        for _ in 0..<Self.drawsMax {
            let port = free[Int.random(in: 0..<free.count, using: &random)]
            guard fits(port, wish) else { continue }
            take(port)
            return port
        }
        let start = Int.random(in: 0..<free.count, using: &random)
        guard let port = (free[start...] + free[..<start]).first(where: { fits($0, wish) }) else { return nil }
        take(port)
        return port
    }

    /// Takes this port if it is free.
    package mutating func take(_ port: UInt16) {
        guard isFree(port) else { return }
        let place = places[Int(port - range.lowerBound)]
        let last = free.removeLast()
        if last != port {
            free[Int(place)] = last
            places[Int(last - range.lowerBound)] = place
        }
        places[Int(port - range.lowerBound)] = -1
    }

    /// Frees a port. Has no effect if it is free or not in the range.
    package mutating func give(back port: UInt16) {
        guard range.contains(port), !isFree(port) else { return }
        places[Int(port - range.lowerBound)] = Int32(free.count)
        free.append(port)
    }
}
