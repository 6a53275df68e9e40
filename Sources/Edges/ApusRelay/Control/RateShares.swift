/// Who draws from which bucket: a user's bound at this node, divided among the planes that have its allocations (D8).
///
/// A plane's part is the same for each plane of the user, whatever its allocations carry: parts that follow the traffic
/// would need the planes to speak to each other on the packet's way. With one plane, or one client address, a user has
/// all of its bound.
package struct RateShares: Sendable {
    /// What a plane is to be told.
    package typealias Telling = (plane: UInt8, command: PlaneCommand)

    /// An allocation, or a data connection of one (RFC 6062), which may be at another plane.
    private enum Drawer: Hashable {
        case allocation(UInt32), connection(UInt32)

        init(_ number: UInt32, isConnection: Bool) {
            self = isConnection ? .connection(number) : .allocation(number)
        }
    }

    private struct User {
        var number: UInt32
        /// Its allocations and data connections, with their planes, in the order in which they began.
        var allocations: [(id: Drawer, plane: UInt8)] = []

        /// Its planes, the first first, with one allocation of each.
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

    /// - Parameter rate: of each user at this node.
    package init(rate: RelayRate) { self.rate = rate }

    /// A plane has an allocation, or a data connection, from here on.
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
        return tell(name, about: id, plane: plane, planeCountBefore: countBefore)
    }

    /// Another plane has an allocation from here on.
    package mutating func moved(_ number: UInt32, to plane: UInt8) -> [Telling] {
        let id = Drawer.allocation(number)
        guard let name = owners[id], let index = users[name]?.allocations.firstIndex(where: { $0.id == id }) else {
            return []
        }
        let countBefore = users[name]?.planes.count
        users[name]?.allocations[index].plane = plane
        return tell(name, about: id, plane: plane, planeCountBefore: countBefore)
    }

    /// An allocation, or a data connection, is no more.
    package mutating func ended(_ number: UInt32, isConnection: Bool = false) -> [Telling] {
        let id = Drawer(number, isConnection: isConnection)
        guard let name = owners.removeValue(forKey: id), let before = users[name]?.planes.count else { return [] }
        users[name]?.allocations.removeAll { $0.id == id }
        guard let user = users[name], !user.allocations.isEmpty else {
            users[name] = nil
            return []
        }
        return user.planes.count == before ? [] : user.planes.map { telling($0.plane, $0.id, user) }
    }

    private func tell(_ name: String, about id: Drawer, plane: UInt8, planeCountBefore: Int?) -> [Telling] {
        guard let user = users[name] else { return [] }
        let own = telling(plane, id, user)
        guard user.planes.count != planeCountBefore else { return [own] }
        return [own] + user.planes.filter { $0.plane != plane }.map { telling($0.plane, $0.id, user) }
    }

    private func telling(_ plane: UInt8, _ id: Drawer, _ user: User) -> Telling {
        let share = rate.share(of: user.planes.count)
        return switch id {
        case .allocation(let id): (plane, .limit(allocation: id, user: user.number, share))
        case .connection(let number): (plane, .limitPeer(connection: number, PeerLimit(user: user.number, rate: share)))
        }
    }
}
