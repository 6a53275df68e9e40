package import ApusCore
import ApusTraversal

/// Handles orders from the rest of the node.
extension RelayServer {
    package mutating func handle(
        _ order: RelayOrder, now: MonotonicTime, into commands: inout [(plane: UInt8, command: PlaneCommand)]
    ) {
        switch order {
        case .mirrored(let changes):
            for change in changes {
                switch change {
                case .kept(let state, let old): machine.adopt(state, replacing: old, at: now)
                case .ended(let ticket): machine.forget(ticket)
                }
            }
        case .tellMirrors:
            let all = machine.mirrorsOfAll(at: now)
            if !all.isEmpty { tell(.mirrors(all.map { .kept($0, replacing: nil) })) }
        case .surrender(let ticket, let username, let answer):
            let (state, actions) = machine.surrender(ticket, username: username, at: now)
            // The old allocation ends before the new one begins.
            perform(actions, now, &commands)
            answer(state)
        case .claimed(let number, let state): perform(machine.claimed(number, state, at: now), now, &commands)
        case .movedAway(let ticket): perform(machine.movedAway(ticket, at: now), now, &commands)
        case .othersHave(let counts): machine.othersHave(counts)
        case .othersAreAt(let reached, let reported, let relays):
            perform(machine.othersAreAt(reached: reached, reported: reported, relays: relays), now, &commands)
        case .drain(let alternate): machine.drain(to: alternate, at: now)
        case .undrain: machine.undrain()
        case .revoked(let isRevoked): perform(machine.revoke(isRevoked, at: now), now, &commands)
        case .sessions(let selection, let answer):
            answer(machine.sessions(selection, countMax: RelaySessions.countMax, at: now))
        case .end(let selection, let answer):
            let (count, actions) = machine.end(selection, at: now)
            perform(actions, now, &commands)
            answer(count)
        case .rules(let rules):
            let actions = machine.rulesChanged(
                credentials: rules.credentials, users: rules.users, peers: rules.peers, at: now)
            perform(actions, now, &commands)
        case .peers(let peers): perform(machine.peersChanged(peers), now, &commands)
        case .standing(let answer): answer(standing())
        }
    }
}

/// Applies changed rules for peers to existing allocations, in steps between the events.
extension RelayServer {
    package var hasWork: Bool { machine.isJudging }

    package mutating func work(now: MonotonicTime, into commands: inout [(plane: UInt8, command: PlaneCommand)]) {
        perform(machine.judgeMore(), now, &commands)
    }
}

extension RelayServer {
    private func standing() -> RelayStanding {
        var standing = RelayStanding()
        standing.allocations = machine.allocationCount
        standing.mirrors = machine.mirrorCount
        standing.isDraining = machine.isDraining
        standing.traffic = accounts.total
        standing.users = accounts.top(Self.standingUsersMax)
        standing.userCount = accounts.userCount
        return standing
    }
}
