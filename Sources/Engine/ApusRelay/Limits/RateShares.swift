import ApusCore

/// A user's rate limit at this node, split over the planes that carry its traffic, by demand (D8).
///
/// With one plane, or one client address, a user has its whole limit. With several, each plane starts with an equal
/// part. The parts then follow what the planes carry and drop, which they report once a second, so planes need not
/// communicate for each packet. If a plane is near its part, ``rebalance(after:)`` splits again: a plane keeps a
/// quarter of an equal part, for traffic that may start there, and the rest follows demand. The sum of the parts never
/// exceeds the limit.
///
/// Pure value.
package struct RateShares: Sendable {
    /// The most users that one ``rebalance(after:)`` visits. The others follow with the next call.
    package static let rebalancesMax = 256
    /// The number of the node itself at planes. Those of users start at 1.
    static let nodeUser: UInt32 = 0
    /// The number of units into which a limit is split.
    private static let units = 64
    /// The share of its part from which a plane counts as near it.
    private static let nearness = 0.75
    /// A smaller change of a part is not made, in units.
    private static let changeMin = 4
    /// The assumed size of a dropped packet if none was carried, in bytes.
    private static let packetByteCount = 1_000.0

    /// A command for a plane.
    package typealias Telling = (plane: UInt8, command: PlaneCommand)

    /// An allocation, or one of its data connections (RFC 6062), which may be at another plane.
    private enum Drawer: Hashable {
        case allocation(UInt32), connection(UInt32)

        init(_ number: UInt32, isConnection: Bool) {
            self = isConnection ? .connection(number) : .allocation(number)
        }
    }

    private struct User {
        var number: UInt32
        /// Its allocations and data connections, with their planes, in the order of their start.
        var allocations: [(id: Drawer, plane: UInt8)] = []
        /// The parts in ``RateShares/units``, if they differ from equal ones; empty: all are equal.
        var parts: [(plane: UInt8, units: Int)] = []
        /// What planes carried and dropped since the last rebalance.
        var demand: [(plane: UInt8, traffic: RelayTraffic)] = []

        /// Its planes in order, with one allocation of each.
        var planes: [(plane: UInt8, id: Drawer)] {
            var planes: [(plane: UInt8, id: Drawer)] = []
            for (id, plane) in allocations where !planes.contains(where: { $0.plane == plane }) {
                planes.append((plane, id))
            }
            return planes
        }
    }

    private let rate: RelayRate
    private var users: [String: User] = [:]
    private var owners: [Drawer: String] = [:]
    private var lastNumber: UInt32 = 0
    /// Users with several planes and traffic since the last rebalance, each once.
    private var busy: [String] = []

    /// - Parameter rate: of each user at this node.
    package init(rate: RelayRate) { self.rate = rate }

    /// A plane now has an allocation or a data connection.
    package mutating func began(
        _ number: UInt32, user name: String, plane: UInt8, isConnection: Bool = false
    ) -> [Telling] {
        guard !rate.isNone else { return [] }
        let id = Drawer(number, isConnection: isConnection)
        if users[name] == nil {
            lastNumber &+= 1
            users[name] = User(number: lastNumber)
        }
        owners[id] = name
        let countBefore = users[name]?.planes.count
        users[name]?.allocations.append((id, plane))
        if users[name]?.planes.count != countBefore { users[name]?.parts = [] }
        return tell(name, about: id, plane: plane, planeCountBefore: countBefore)
    }

    /// An allocation moved to another plane.
    package mutating func moved(_ number: UInt32, to plane: UInt8) -> [Telling] {
        let id = Drawer.allocation(number)
        guard let name = owners[id], let index = users[name]?.allocations.firstIndex(where: { $0.id == id }) else {
            return []
        }
        let before = users[name]?.planes.map(\.plane) ?? []
        users[name]?.allocations[index].plane = plane
        let hasOthers = Set(users[name]?.planes.map(\.plane) ?? []) != Set(before)
        if hasOthers { users[name]?.parts = [] }
        return tell(name, about: id, plane: plane, planeCountBefore: hasOthers ? nil : before.count)
    }

    /// An allocation, or a data connection, ended.
    package mutating func ended(_ number: UInt32, isConnection: Bool = false) -> [Telling] {
        let id = Drawer(number, isConnection: isConnection)
        guard let name = owners.removeValue(forKey: id), let before = users[name]?.planes.count else { return [] }
        users[name]?.allocations.removeAll { $0.id == id }
        guard let user = users[name], !user.allocations.isEmpty else {
            if users[name]?.demand.isEmpty == false { busy.removeAll { $0 == name } }
            users[name] = nil
            return []
        }
        guard user.planes.count != before else { return [] }
        users[name]?.parts = []
        return user.planes.compactMap { place in users[name].map { telling(place.plane, place.id, $0) } }
    }

    /// Adds the traffic of an allocation, or of a data connection, at a plane.
    package mutating func carried(
        _ number: UInt32, _ traffic: RelayTraffic, plane: UInt8, isConnection: Bool = false
    ) {
        let id = Drawer(number, isConnection: isConnection)
        guard let name = owners[id], let planes = users[name]?.planes, planes.count > 1 else { return }
        guard planes.contains(where: { $0.plane == plane }) else { return }
        if users[name]?.demand.isEmpty == true { busy.append(name) }
        if let index = users[name]?.demand.firstIndex(where: { $0.plane == plane }) {
            users[name]?.demand[index].traffic += traffic
        } else {
            users[name]?.demand.append((plane, traffic))
        }
    }

    /// Splits again the limits of users whose planes are near their parts. Call once per `interval`.
    package mutating func rebalance(after interval: Duration) -> [Telling] {
        guard !busy.isEmpty else { return [] }
        let seconds = max(0.1, interval.milliseconds / 1_000)
        let names = busy.prefix(Self.rebalancesMax)
        busy.removeFirst(names.count)
        return names.flatMap { rebalance($0, seconds) }
    }

    private mutating func rebalance(_ name: String, _ seconds: Double) -> [Telling] {
        guard var user = users[name] else { return [] }
        defer { users[name] = user }
        let demand = user.demand
        user.demand = []
        let planes = user.planes
        guard planes.count > 1 else { return [] }
        let wanted = planes.map { plane in
            demand.first { $0.plane == plane.plane }.map { self.part($0.traffic, seconds) } ?? 0
        }
        let now = planes.map { units(of: $0.plane, user) }
        let isNear = zip(wanted, now).contains { $0 >= Self.nearness * Double($1) / Double(Self.units) }
        let sum = wanted.reduce(0, +)
        guard isNear, sum > 0 else { return [] }
        let least = max(1, Self.units / (4 * planes.count))
        let free = Double(Self.units - least * planes.count)
        // Rounded down, so that the sum does not exceed the limit. The plane with the largest demand gets the rest.
        var next = wanted.map { least + Int(max(0, free) * $0 / sum) }
        let most = wanted.indices.max { wanted[$0] < wanted[$1] } ?? 0
        next[most] += max(0, Self.units - next.reduce(0, +))
        guard zip(next, now).contains(where: { abs($0 - $1) >= Self.changeMin }) else { return [] }
        let wasEqual = user.parts.isEmpty
        user.parts = zip(planes, next).map { ($0.plane, $1) }
        // Reductions are sent before increases, so that the planes together never exceed the limit.
        let changed = zip(zip(planes, next), now).filter { wasEqual || $0.0.1 != $0.1 }
            .map { ($0.0.0, isLess: $0.0.1 < $0.1) }
        let ordered = changed.filter(\.isLess) + changed.filter { !$0.isLess }
        return ordered.map { telling($0.0.plane, $0.0.id, user) }
    }

    /// The share of the limit that this traffic is, per second; more than 1 if it exceeded it.
    private func part(_ traffic: RelayTraffic, _ seconds: Double) -> Double {
        let packets = Double(traffic.upPackets &+ traffic.downPackets)
        let bytes = Double(traffic.upBytes &+ traffic.downBytes)
        let dropped = Double(traffic.dropped)
        let size = packets > 0 ? bytes / packets : Self.packetByteCount
        func share(_ amount: Double, _ rate: UInt64) -> Double { rate == 0 ? 0 : amount / seconds / Double(rate) }
        return max(share(bytes + dropped * size, rate.bytesPerSecond), share(packets + dropped, rate.packetsPerSecond))
    }

    private func units(of plane: UInt8, _ user: User) -> Int {
        user.parts.first { $0.plane == plane }?.units ?? Self.units / max(1, user.planes.count)
    }

    private func tell(_ name: String, about id: Drawer, plane: UInt8, planeCountBefore: Int?) -> [Telling] {
        guard let user = users[name] else { return [] }
        let own = telling(plane, id, user)
        guard user.planes.count != planeCountBefore else { return [own] }
        return [own] + user.planes.filter { $0.plane != plane }.map { telling($0.plane, $0.id, user) }
    }

    private func telling(_ plane: UInt8, _ id: Drawer, _ user: User) -> Telling {
        let part =
            user.parts.isEmpty
            ? rate.share(of: user.planes.count) : rate.part(units(of: plane, user), of: Self.units)
        return switch id {
        case .allocation(let id): (plane, .limit(allocation: id, user: user.number, part))
        case .connection(let number): (plane, .limitPeer(connection: number, PeerLimit(user: user.number, rate: part)))
        }
    }
}

extension RelayRate {
    /// The given number of units of all units. A limit stays a limit.
    func part(_ units: Int, of all: Int) -> RelayRate {
        func part(_ rate: UInt64) -> UInt64 { rate == 0 ? 0 : max(1, rate * UInt64(units) / UInt64(all)) }
        return RelayRate(bytesPerSecond: part(bytesPerSecond), packetsPerSecond: part(packetsPerSecond))
    }
}
