package import ApusCore
import ApusTransport
import CoreMetrics
import Foundation
import Logging
import NIOCore
import Synchronization

/// Logs the findings of the heartbeat thread, and passes them to the machine that decides.
extension ClusterService {
    /// Called on the heartbeat thread.
    func found(_ finding: MembershipDriver.Finding) {
        switch finding {
        case .peer(let action, let evidence): found(action, evidence)
        case .clocks(let report): found(report)
        case .confirmMap(let number): thread.loop.execute { self.confirmMap(number) }
        case .permission(let permission): show(permission)
        case .answersWait: thread.loop.execute { self.view.permission.wakeAll() }
        }
    }

    private func found(_ action: MembershipStateMachine.Action, _ evidence: MembershipEvidence?) {
        switch action {
        case .suspected(let peer, let reason):
            metrics.suspicions.increment()
            logger.info("A peer is suspected", metadata: facts(peer, reason.rawValue, evidence))
        case .confirmedDead(let peer, let reason):
            metrics.deathsConfirmed.increment()
            thread.loop.execute { self.handle(ownership: .confirmedDead(peer, isCertain: reason.isProven)) }
            var facts = facts(peer, reason.rawValue, evidence)
            facts[LogKey.pressure] = "\(Self.pressure())"
            logger.warning("A peer is dead as far as this node can tell", metadata: facts)
        case .certain(let peer):
            logger.warning("Most nodes do not hear a peer that is silent", metadata: facts(peer, nil, evidence))
            note(peer, unheardBy: .majority, evidence)
        case .half(let peer): note(peer, unheardBy: .half, evidence)
        case .uncertain(let peer): note(peer, unheardBy: .few, evidence)
        case .recovered(let peer):
            logger.info("A suspected peer was heard again", metadata: facts(peer, nil, evidence))
            thread.loop.execute { self.handle(ownership: .recovered(peer)) }
        case .discarded(let peer):
            metrics.suspicionsDiscarded.increment()
            logger.info(
                "A suspicion was discarded since this node itself was late", metadata: facts(peer, nil, evidence))
            thread.loop.execute { self.handle(ownership: .recovered(peer)) }
        case .pathCut(let peer, let helper):
            metrics.pathsCut.increment()
            var facts = facts(peer, nil, evidence)
            facts[LogKey.helper] = "\(helper)"
            logger.warning("The path to a peer is cut; its messages go through another node", metadata: facts)
            thread.loop.execute { self.setHelper(helper, of: peer) }
        case .pathRestored(let peer):
            logger.notice("The path to a peer is restored", metadata: facts(peer, nil, evidence))
            thread.loop.execute { self.setHelper(nil, of: peer) }
        case .send, .inspect, .confirmMap: break
        }
    }

    private func note(
        _ peer: NodeID, unheardBy share: OwnershipStateMachine.Share, _ evidence: MembershipEvidence?
    ) {
        guard let revision = evidence?.mapRevision else { return }
        thread.loop.execute { self.handle(ownership: .unheard(peer, by: share, revision: revision)) }
    }

    // MARK: The permission to answer

    private func show(_ permission: MembershipDriver.Permission) {
        switch permission {
        case .granted: hooks.condition(.answersPaused, nil)
        case .lapsed: metrics.permissionLapses.increment()
        case .refusing:
            hooks.condition(
                .answersPaused,
                "this node does not hear most of the cluster's nodes; it answers no requests to entities with kept "
                    + "state, since another node may own them")
        }
    }

    /// Makes every decision fail that another node made on the present map.
    private func confirmMap(_ number: UInt64) {
        guard state.value.isRunning else { return answerConfirmation(number, isDone: false) }
        metrics.mapsConfirmed.increment()
        propose(.confirm(identity), waiter: .confirmation(number))
    }

    func answerConfirmation(_ number: UInt64, isDone: Bool) {
        heartbeats.withLock { $0 }?.perform { driver, now in
            driver.handle(.mapConfirmed(number, isDone: isDone), now: now)
        }
    }

    // MARK: Paths

    private func setHelper(_ helper: NodeID?, of peer: NodeID) {
        state.value.helpers[peer] = helper
        state.value.links?.setPath(to: peer.name, via: helper?.name)
        showPaths()
    }

    /// Applies the helpers to the links of a new map, which are dialled directly at first.
    func keepPaths(_ map: ClusterMap) {
        state.value.helpers = state.value.helpers.filter { map.isAlive($0.key) }
        for (peer, helper) in state.value.helpers {
            state.value.links?.setPath(to: peer.name, via: map.isAlive(helper) ? helper.name : nil)
        }
        showPaths()
    }

    private func showPaths() {
        let cut = state.value.helpers.sorted { $0.key < $1.key }
        metrics.cutPaths.record(cut.count)
        let list = cut.map { "to \($0.key.name) through \($0.value.name)" }.joined(separator: ", ")
        hooks.condition(
            .pathCut,
            cut.isEmpty
                ? nil : "the network between this node and others is cut; messages go another way: \(list)")
    }

    private func facts(_ peer: NodeID, _ reason: String?, _ evidence: MembershipEvidence?) -> Logger.Metadata {
        var facts: Logger.Metadata = [LogKey.peer: "\(peer)"]
        if let reason { facts[LogKey.reason] = "\(reason)" }
        if let evidence { facts[LogKey.evidence] = "\(evidence)" }
        return facts
    }

    /// The share of time that processes of this machine waited for a processor, in per cent of the last 10 s
    /// (proc_pressure_cpu(5)).
    private static func pressure() -> String {
        let text = FileManager.default.contents(atPath: "/proc/pressure/cpu").map {
            String(decoding: $0, as: UTF8.self)
        }
        return text?.split(separator: " ").first { $0.hasPrefix("avg10=") }.map { String($0.dropFirst(6)) } ?? "unknown"
    }

    // MARK: Clocks

    private func found(_ report: ClockStateMachine.Report) {
        for offset in report.offsets { metrics.show(offset.value, of: offset.peer.name) }
        view.clock.judged(report)
        guard !report.differing.isEmpty else { return hooks.condition(.clockDiffers, nil) }
        let list = report.differing
            .map { "\($0.peer.name) by \(String(format: "%+.1f", $0.value.milliseconds / 1000)) s" }
            .joined(separator: ", ")
        let sentence =
            report.isAlone
            ? "this node's clock differs from most others' (\(list)); set it: tokens are validated by the others' time"
            : "the clocks of other nodes differ from this node's (\(list)); have all nodes set theirs by NTP"
        hooks.condition(report.isAlone ? .clockDiffersFromMost : .clockDiffers, sentence)
    }
}

extension NodeConditions.Kind {
    /// The listener for other nodes closed and is not open again.
    package static let transportClosed = Self("transport_closed", isUnhealthy: true)
    /// Packets between this node and a peer do not arrive, but a third node exchanges packets with both. Messages go
    /// through that node.
    package static let pathCut = Self("path_cut", isUnhealthy: false)
    /// This node was declared dead and reaches no other node. It waits to join.
    package static let unreachable = Self("unreachable", isUnhealthy: true)
    /// Another process is the node of this name. This one waits until that has ended.
    package static let duplicateNode = Self("duplicate_node", isUnhealthy: true)
    /// As ``duplicateNode``, but this process is the node, and the other one waits.
    package static let duplicateNodeWaits = Self("duplicate_node", isUnhealthy: false)
    /// This node hears less than half of the members that are not certainly dead. It declares nobody dead.
    package static let minority = Self("minority", isUnhealthy: true)
    /// This node has had no promises of most members for longer than `membership.refusal_delay`. It refuses requests to
    /// entities with kept state.
    package static let answersPaused = Self("answers_paused", isUnhealthy: true)
    /// Clocks of other nodes differ from this node's by more than `membership.clock_difference_max`.
    package static let clockDiffers = Self("clock_differs", isUnhealthy: false)
    /// As ``clockDiffers``, but this node's clock is the wrong one: it differs from most others', of which there are at
    /// least two.
    package static let clockDiffersFromMost = Self("clock_differs", isUnhealthy: true)
}
