import ApusCore
import ApusStorage
import ApusTransport
import Logging

/// A node that the others declared dead, and that reaches the store but none of them, does not join: they would declare
/// it dead again, for as long as the network is cut (D4).
extension ClusterService {
    /// Waits until a member that is alive in the map accepts a connection, or until none of them can be alive: each
    /// refuses connections, or is silent and holds no lease. Returns at once unless the map shows this name as dead.
    ///
    /// - Throws: 10006 if the task is cancelled; the store's errors.
    func awaitMember(over links: any ClusterLinks) async throws(ApusError) {
        var isReported = false
        while true {
            let map = try await Self.readMap(store, cluster: configuration.cluster)
            let members = map.membersToReach(from: configuration.node)
            if members.isEmpty { break }
            let silent = await silentMembers(members, over: links)
            guard let silent else { break }
            if silent.isEmpty { break }
            let holders = try await store.leaseHolders()
            if !silent.contains(where: { holders.contains($0.id) }) { break }
            let list = silent.map { "\($0.id.name) at \($0.addresses.transport)" }.joined(separator: ", ")
            if !isReported {
                isReported = true
                logger.warning(
                    "This node waits to join: the others declared it dead, and it cannot reach any of them",
                    metadata: [LogKey.peer: "\(list)"])
            }
            hooks.condition(
                .unreachable,
                "this node cannot reach the other nodes (\(list)); check the network and firewalls between them")
            do {
                try await Task.sleep(for: configuration.joinRetryInterval)
            } catch {
                throw ApusError(.cancelled)
            }
        }
        hooks.condition(.unreachable, nil)
    }

    /// The members that did not answer; nil if one accepted a connection.
    private func silentMembers(_ members: [Member], over links: any ClusterLinks) async -> [Member]? {
        let timeout = configuration.joinRetryInterval
        return await withTaskGroup(of: (Member, NodeReach).self) { group in
            for member in members {
                group.addTask { (member, await links.reach(member.addresses.transport, timeout: timeout)) }
            }
            var silent: [Member] = []
            for await (member, reach) in group {
                switch reach {
                case .reached:
                    group.cancelAll()
                    return nil
                case .refused: break
                case .silent: silent.append(member)
                }
            }
            return silent.sorted { $0.id < $1.id }
        }
    }
}
