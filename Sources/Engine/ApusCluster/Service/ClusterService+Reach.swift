import ApusCore
import ApusStorage
import ApusTransport
import Logging

/// Waits until this node may join; ``JoinStateMachine`` decides.
extension ClusterService {
    /// Returns when this node may join. Raises a condition while it waits.
    ///
    /// - Parameter address: this node's address for other nodes.
    /// - Throws: 10025 if another process took this incarnation; 10006 if the task is cancelled; the store's errors of
    ///   the first read.
    func awaitMember(over links: any ClusterLinks, address: HostPort) async throws(ApusError) {
        var waiting = JoinStateMachine.Configuration()
        waiting.retryInterval = configuration.joinRetryInterval
        waiting.leaseDuration = configuration.leaseDuration
        var machine = JoinStateMachine(
            local: identity, address: address, endedProcesses: configuration.endedProcesses, configuration: waiting)
        var action = machine.mapRead(try await readMap())
        var obstacle: JoinStateMachine.Obstacle?
        while true {
            switch action {
            case .join:
                hooks.condition(.unreachable, nil)
                hooks.condition(.duplicateNode, nil)
                return
            case .fenced:
                throw ApusError(.fenced, "another process of the node \(identity.name) joined as \(identity)")
            case .reach(let members): action = machine.answered(await answers(of: members, over: links))
            case .readLeases: action = machine.leasesRead(try await leaseHolders(), now: .now())
            case .wait(let next, let pause):
                show(next, after: obstacle, address: address)
                obstacle = next
                try await sleep(pause)
                action = machine.mapRead(try await readMapAgain())
            }
        }
    }

    private func sleep(_ pause: Duration) async throws(ApusError) {
        do {
            try await Task.sleep(for: pause)
        } catch {
            throw ApusError(.cancelled)
        }
    }

    private func readMap() async throws(ApusError) -> ClusterMap {
        try await Self.readMap(store, cluster: configuration.cluster)
    }

    /// A node that waits outlasts a store that fails in the meantime.
    private func readMapAgain() async throws(ApusError) -> ClusterMap {
        while true {
            do throws(ApusError) {
                return try await readMap()
            } catch {
                guard error.code != .cancelled else { throw error }
                logger.debug("The ownership store failed", metadata: Logger.facts(of: error))
            }
            try await sleep(configuration.joinRetryInterval)
        }
    }

    private func leaseHolders() async throws(ApusError) -> Set<NodeID> {
        while true {
            do throws(ApusError) {
                return try await store.leaseHolders()
            } catch {
                guard error.code != .cancelled else { throw error }
                logger.debug("The leases in the ownership store cannot be read", metadata: Logger.facts(of: error))
            }
            try await sleep(configuration.joinRetryInterval)
        }
    }

    private func show(
        _ obstacle: JoinStateMachine.Obstacle, after earlier: JoinStateMachine.Obstacle?, address: HostPort
    ) {
        switch obstacle {
        case .duplicate(let other):
            hooks.condition(.unreachable, nil)
            hooks.condition(
                .duplicateNode,
                "the node \(identity.name) is up as \(other.id) at \(other.addresses.transport), and this process at "
                    + "\(address) has the same name and certificate; it joins when the other one has ended; give one "
                    + "of them a name, a certificate and a data directory of its own, or stop it")
        case .unended(let other):
            hooks.condition(.unreachable, nil)
            hooks.condition(
                .duplicateNode,
                "the node \(identity.name) counts as up as \(other.id) at \(other.addresses.transport), and does not "
                    + "answer; this process at \(address) joins when the other nodes declare that one dead, or it has "
                    + "held no lease for a while; if another machine has this name and certificate, stop it")
        case .unreachable(let unwelcome, let silent):
            hooks.condition(.duplicateNode, nil)
            let list = (unwelcome + silent).map { "\($0.id.name) at \($0.addresses.transport)" }
                .joined(separator: ", ")
            let advice =
                unwelcome.isEmpty
                ? "this node cannot reach the other nodes (\(list)); check the network and firewalls between them"
                : "other nodes refuse this node's certificate (\(list)): it has expired, is revoked, or is from "
                    + "another authority; install a new one and restart"
            if case .unreachable = earlier {
            } else {
                logger.warning(
                    "This node waits to join: the others declared it dead, and none of them accepts a link",
                    metadata: [LogKey.peer: "\(list)", LogKey.reason: "\(advice)"])
            }
            hooks.condition(.unreachable, advice)
        }
    }

    /// The members' answers; only that of the first that accepts a link, if one does.
    private func answers(
        of members: [Member], over links: any ClusterLinks
    ) async -> [(member: Member, answer: JoinStateMachine.Answer)] {
        let timeout = configuration.joinRetryInterval
        return await withTaskGroup(of: (Member, NodeReach).self) { group in
            for member in members {
                let peer = Peer(id: member.id, address: member.addresses.transport)
                group.addTask { (member, await links.reach(peer, timeout: timeout)) }
            }
            var answers: [(member: Member, answer: JoinStateMachine.Answer)] = []
            for await (member, reach) in group {
                let answer = JoinStateMachine.Answer(reach)
                guard answer != .accepted else {
                    group.cancelAll()
                    return [(member, answer)]
                }
                answers.append((member, answer))
            }
            return answers.sorted { $0.member.id < $1.member.id }
        }
    }
}

extension JoinStateMachine.Answer {
    fileprivate init(_ reach: NodeReach) {
        self =
            switch reach {
            case .reached: .accepted
            case .another: .another
            case .refused: .refused
            case .silent: .silent
            case .unwelcome: .unwelcome
            }
    }
}
