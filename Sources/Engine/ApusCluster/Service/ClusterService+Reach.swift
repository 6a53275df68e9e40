import ApusCore
import ApusStorage
import ApusTransport
import Logging

/// A node that the others declared dead, and that reaches the store but none of them, does not join: they would declare
/// it dead again, for as long as the network is cut (D4).
extension ClusterService {
    /// Waits until a member that is alive in the map accepts a link, or until none of them can be alive: each refuses
    /// connections, or is silent and holds no lease. A member that refuses this node's certificate is alive. Returns at
    /// once unless the map shows this name as dead.
    ///
    /// - Throws: 10006 if the task is cancelled; the store's errors.
    func awaitMember(over links: any ClusterLinks) async throws(ApusError) {
        var isReported = false
        while true {
            let map = try await Self.readMap(store, cluster: configuration.cluster)
            let members = map.membersToReach(from: configuration.node)
            if members.isEmpty { break }
            guard let answers = await answers(of: members, over: links) else { break }
            let unwelcome = answers.filter { $0.reach == .unwelcome }.map(\.member)
            let silent = answers.filter { $0.reach == .silent }.map(\.member)
            if unwelcome.isEmpty {
                if silent.isEmpty { break }
                let holders = try await store.leaseHolders()
                if !silent.contains(where: { holders.contains($0.id) }) { break }
            }
            let list = (unwelcome + silent).map { "\($0.id.name) at \($0.addresses.transport)" }.joined(separator: ", ")
            let advice =
                unwelcome.isEmpty
                ? "this node cannot reach the other nodes (\(list)); check the network and firewalls between them"
                : "other nodes refuse this node's certificate (\(list)): it has expired, is revoked, or is from "
                    + "another authority; install a new one and restart"
            if !isReported {
                isReported = true
                logger.warning(
                    "This node waits to join: the others declared it dead, and none of them accepts a link",
                    metadata: [LogKey.peer: "\(list)", LogKey.reason: "\(advice)"])
            }
            hooks.condition(.unreachable, advice)
            do {
                try await Task.sleep(for: configuration.joinRetryInterval)
            } catch {
                throw ApusError(.cancelled)
            }
        }
        hooks.condition(.unreachable, nil)
    }

    /// The members that accepted no link, with their answers; nil if one accepted it.
    private func answers(
        of members: [Member], over links: any ClusterLinks
    ) async -> [(member: Member, reach: NodeReach)]? {
        let timeout = configuration.joinRetryInterval
        return await withTaskGroup(of: (Member, NodeReach).self) { group in
            for member in members {
                let peer = Peer(id: member.id, address: member.addresses.transport)
                group.addTask { (member, await links.reach(peer, timeout: timeout)) }
            }
            var answers: [(member: Member, reach: NodeReach)] = []
            for await (member, reach) in group {
                if reach == .reached {
                    group.cancelAll()
                    return nil
                }
                answers.append((member, reach))
            }
            return answers.sorted { $0.member.id < $1.member.id }
        }
    }
}
