package import ApusCluster
package import ApusCore
import ApusCrypto
import ApusRelay
package import ApusTransport
import ApusTraversal
import ApusWire
package import Logging
import ServiceLifecycle
import SwiftProtobuf
import Synchronization

/// The connection of a node's relay to the other relays of the cluster. It mirrors allocations to the standby, finds
/// the allocations of clients' tickets, and reports this node's endpoints and its users' allocations to the other nodes
/// (D8).
/// It also issues credentials to clients, with the endpoints of this node and of others (``RelayIssuer``).
/// ``RelayRoster`` and ``MirrorFeedStateMachine`` decide, and this class carries out their actions. All of this is best
/// effort: a lost message may cost a client a new allocation, but never a packet of a live one.
/// Isolation: any thread. One `Mutex` guards both machines, and nothing else is called while it is held.
package final class RelayMesh: Service {
    /// A node's endpoints do not change while it is up, but a report can be lost, so it is repeated at this interval.
    private static let endpointsInterval = Duration.seconds(10)
    /// The interval at which the links are searched for nodes that have not been reached yet.
    private static let reachInterval = Duration.milliseconds(500)
    /// How long the standby may take to answer a batch, and each node to answer a claim.
    private static let mirrorTimeout = Duration.seconds(2)
    private static let claimTimeout = Duration.milliseconds(500)
    /// The maximum number of queued work items. Further ones are dropped; clients repeat claims.
    private static let workMax = 2_048

    private enum Work: Sendable {
        case send(UInt64, NodeID, [MirrorChange])
        case claim(UInt32, MobilityTicket, username: String)
        case report(RelayReport)
    }

    private struct State {
        var roster: RelayRoster
        var feed = MirrorFeedStateMachine()
        var isDraining = false
        var alternate: RelayAlternate?
        /// The relay's last counts of users' allocations at other nodes.
        var elsewhere: [String: Int] = [:]
        var places = RelayPlaces()
        /// The places that the relay accepted.
        var placesTaken = RelayPlaces()
    }

    let relay: RelayService
    private let advertised: HostPort?
    let view: ClusterView
    private let transport: Transport
    private let log: Logger
    private let state: Mutex<State>
    private let work = WorkQueue<Work>(countMax: RelayMesh.workMax)
    /// The time at which mirrors that the standby refused are sent again. Only the newest counts.
    private let retries: AsyncStream<MonotonicTime>
    private let retryFeed: AsyncStream<MonotonicTime>.Continuation

    /// - Parameter advertised: the relay address that clients receive; if nil, the relay's first endpoint.
    package init(
        relay: RelayService, advertised: HostPort?, view: ClusterView, transport: Transport, dispatcher: NodeDispatcher,
        log: Logger
    ) {
        self.relay = relay
        self.advertised = advertised
        self.view = view
        self.transport = transport
        self.log = log
        state = Mutex(State(roster: RelayRoster(local: view.local)))
        (retries, retryFeed) = AsyncStream.makeStream(bufferingPolicy: .bufferingNewest(1))
        view.observe { [weak self] _, new in self?.mapChanged(new) }
        relay.onNews { [weak self] news in self?.received(news) }
        register(with: dispatcher)
    }

    /// The number that identifies an incarnation of a node in tickets.
    package static func tag(of node: NodeID) -> UInt64 {
        SHA256.hash(data: Array("\(node)".utf8)).prefix(8).reduce(0) { $0 << 8 | UInt64($1) }
    }

    /// The node that keeps the mirrors of this node's allocations; nil if there is none.
    package var standby: NodeName? { state.withLock { $0.feed.standby?.name } }

    /// The URLs of the cluster's relays for clients, of a few nodes at most. This node's come first unless it is
    /// draining.
    var clientURLs: [String] {
        let own = ownReport(usage: [], isWhole: false)
        return state.withLock { $0.roster.clientURLs(own: own) }
    }

    var credentials: RelayCredentials { relay.credentials }

    package func run() async throws {
        await cancelWhenGracefulShutdown {
            await withDiscardingTaskGroup { group in
                group.addTask {
                    for await time in self.retries {
                        guard (try? await Task.sleep(for: max(time - .now(), .zero))) != nil else { return }
                        self.perform(self.state.withLock { $0.feed.tick(at: .now()) })
                    }
                }
                group.addTask {
                    while (try? await Task.sleep(for: Self.endpointsInterval)) != nil { self.tellEndpoints() }
                }
                group.addTask {
                    while (try? await Task.sleep(for: Self.reachInterval)) != nil { self.tellPlaces() }
                }
                await self.work.run { await self.perform($0) }
            }
        }
    }

    // MARK: Events

    private func mapChanged(_ map: ClusterMap) {
        let members = map.members.filter(\.state.isAlive).map { (id: $0.id, isUp: $0.state == .up) }
        let isLeaving = map.members.contains { $0.id == view.local && $0.state != .up }
        let others = map.members.filter { $0.state.isAlive && $0.id != view.local }.map { member in
            RelayPlaces.Member(
                id: member.id, transport: TransportAddress(member.addresses.transport.host, port: 0),
                listeners: [member.addresses.clients, member.addresses.http].compactMap {
                    TransportAddress($0.host, port: 0)
                })
        }
        let (actions, hasToTell, isUndrained) = state.withLock {
            state -> ([MirrorFeedStateMachine.Action], Bool, Bool) in
            // A node that has left keeps its last state, for redirecting its remaining clients.
            guard members.contains(where: { $0.id == view.local }) else { return ([], false, false) }
            let before = state.roster.others
            state.roster.membersChanged(members)
            let isNews = isLeaving != state.isDraining
            state.isDraining = isLeaving
            if !isLeaving { state.alternate = nil }
            state.places.membersChanged(others)
            let isHeardByNew = state.roster.others.contains { !before.contains($0) }
            let actions = state.feed.standbyChanged(to: state.roster.standby)
            return (actions, isNews || isHeardByNew, isNews && !isLeaving)
        }
        perform(actions)
        if isUndrained { relay.order(.undrain) }
        tellRelay()
        if hasToTell { tellEndpoints() }
    }

    private func heard(_ report: RelayReport, from node: NodeID) {
        let (actions, isFirst) = state.withLock { state -> ([MirrorFeedStateMachine.Action], Bool) in
            let isFirst = state.roster.reported(report, by: node)
            return (state.feed.standbyChanged(to: state.roster.standby), isFirst)
        }
        perform(actions)
        tellRelay()
        // This node's report after the map change may have been sent before there was a link.
        if isFirst { tellEndpoints() }
    }

    /// Reports this node's endpoints to the other nodes, without its users.
    private func tellEndpoints() { work.add(.report(ownReport(usage: [], isWhole: false))) }

    private func ownReport(usage: [RelayUsage], isWhole: Bool) -> RelayReport {
        RelayReport(
            endpoints: relay.endpointsForPeers, domain: relay.domain, isDraining: state.withLock(\.isDraining),
            usage: usage,
            isWhole: isWhole, advertised: advertised,
            addresses: Array(relay.outerAddresses.prefix(RelayRoster.addressesMax)),
            relays: Array(relay.relayedHosts.prefix(RelayRoster.addressesMax)))
    }

    /// Passes changed facts about the other nodes to the relay.
    private func tellRelay() {
        let (elsewhere, alternate) = state.withLock { state -> ([String: Int]?, RelayAlternate?) in
            let counts = state.roster.countsElsewhere
            let isNew = counts != state.elsewhere
            state.elsewhere = counts
            let alternate = state.roster.alternate
            guard state.isDraining, let alternate, alternate != state.alternate else {
                return (isNew ? counts : nil, nil)
            }
            state.alternate = alternate
            return (isNew ? counts : nil, alternate)
        }
        tellPlaces()
        if let elsewhere { relay.order(.othersHave(elsewhere)) }
        if let alternate { relay.order(.drain(alternate)) }
    }

    /// Passes the other nodes' addresses to the relay if they have changed since it accepted them.
    private func tellPlaces() {
        let found = state.withLock(\.places.unreached).compactMap { id in
            transport.linkedAddress(of: id).flatMap { TransportAddress($0.host, port: 0) }.map { (id, $0) }
        }
        let places = state.withLock { state -> RelayPlaces? in
            for (id, address) in found { state.places.reached(id, at: address) }
            state.places.reported = state.roster.addressesElsewhere
            state.places.relays = state.roster.relaysElsewhere
            return state.places == state.placesTaken ? nil : state.places
        }
        guard let places,
            relay.order(
                .othersAreAt(
                    reached: places.reached, reported: places.claimed, relays: places.relays))
        else { return }
        state.withLock { $0.placesTaken = places }
    }

    /// Processes news of the control thread.
    private func received(_ news: RelayNews) {
        switch news {
        case .mirrors(let changes): perform(state.withLock { $0.feed.changed(changes) })
        case .claim(let number, let ticket, let username): work.add(.claim(number, ticket, username: username))
        case .revived(let ticket, let home): tellHome(ticket, home)
        case .usage(let usage, let isWhole):
            guard state.withLock({ !$0.roster.others.isEmpty }) else { return }
            work.add(.report(ownReport(usage: Array(usage.prefix(RelayRoster.usersMax)), isWhole: isWhole)))
        }
    }

    private func tellHome(_ ticket: MobilityTicket, _ home: UInt64) {
        let others = state.withLock { $0.roster.others }
        guard let node = others.first(where: { Self.tag(of: $0) == home }) else { return }
        tell(node, RelayWireMovedAway.with { $0.ticket = .init(ticket.bytes) })
    }

    // MARK: Actions

    private func perform(_ actions: [MirrorFeedStateMachine.Action]) {
        for action in actions {
            switch action {
            case .send(let number, let standby, let changes):
                guard work.add(.send(number, standby, changes)) else {
                    // A failure leads only to a wait, so the recursion ends here.
                    perform(state.withLock { $0.feed.answered(number, isTaken: false, at: .now()) })
                    continue
                }
            case .tellMirrors: relay.order(.tellMirrors)
            case .wait(let time): retryFeed.yield(time)
            }
        }
    }

    private func perform(_ work: Work) async {
        switch work {
        case .send(let number, let standby, let changes): await send(number, standby, changes)
        case .claim(let number, let ticket, let username):
            relay.order(.claimed(number, await find(ticket, username: username)))
        case .report(let report):
            let message = report.wire
            for node in state.withLock({ $0.roster.others }) { tell(node, message) }
        }
    }

    private func send(_ number: UInt64, _ standby: NodeID, _ changes: [MirrorChange]) async {
        var isTaken = true
        do throws(ApusError) {
            _ = try await transport.ask(standby.name, RelayWireMirrored(changes), timeout: Self.mirrorTimeout)
        } catch {
            isTaken = false
            var facts = Logger.facts(of: error)
            facts[LogKey.peer] = "\(standby)"
            log.debug("The relay's standby did not accept mirrors", metadata: facts)
        }
        perform(state.withLock { $0.feed.answered(number, isTaken: isTaken, at: .now()) })
    }

    /// Asks every other node for an allocation or its mirror. The first node that has it gives it up.
    private func find(_ ticket: MobilityTicket, username: String) async -> AllocationMirror? {
        let message = RelayWireClaim.with {
            $0.ticket = .init(ticket.bytes)
            $0.username = username
        }
        let others = state.withLock { $0.roster.others }
        return await withTaskGroup(of: AllocationMirror?.self) { group in
            for node in others {
                group.addTask {
                    let answer = try? await self.transport.ask(node.name, message, timeout: Self.claimTimeout)
                    guard let answer, answer.hasMirror else { return nil }
                    return try? AllocationMirror(answer.mirror)
                }
            }
            for await state in group {
                guard let state else { continue }
                group.cancelAll()
                return state
            }
            return nil
        }
    }

    private func tell(_ node: NodeID, _ message: some NodeMessage) {
        do throws(ApusError) {
            try transport.tell(node.name, message)
        } catch {
            var facts = Logger.facts(of: error)
            facts[LogKey.peer] = "\(node)"
            log.debug("Another relay cannot be notified", metadata: facts)
        }
    }

    // MARK: Messages of other nodes

    private func register(with dispatcher: NodeDispatcher) {
        dispatcher.on(RelayWireMirrored.self) { [weak self] _, message throws(ApusError) in
            guard let self else { throw ApusError(.shuttingDown) }
            guard relay.order(.mirrored(try message.changes())) else { throw ApusError(.overloaded) }
            return RelayWireMirroredTaken()
        }
        dispatcher.on(RelayWireClaim.self) { [weak self] _, message throws(ApusError) in
            guard let self, let ticket = MobilityTicket(bytes: message.ticket) else { throw ApusError(.malformed) }
            let state = await relay.surrender(ticket, username: message.username)
            return .with { if let state { $0.mirror = state.wire } }
        }
        dispatcher.on(RelayWireMovedAway.self) { [weak self] _, message throws(ApusError) in
            guard let self, let ticket = MobilityTicket(bytes: message.ticket) else { throw ApusError(.malformed) }
            relay.order(.movedAway(ticket))
            return RelayWireMovedAwayTaken()
        }
        dispatcher.on(RelayWireReport.self) { [weak self] peer, message throws(ApusError) in
            self?.heard(try RelayReport(message), from: peer)
            return RelayWireReportTaken()
        }
    }
}
