import ApusChannels
import ApusCore
import ApusMedia
import NIOCore

/// One life of a node: the channel's machine and its fan-out, in a shell that does what `ChannelHub`,
/// `MediaPeer`, `MediaLinks` and `PublisherEndpoint` do with sockets.
final class SimulatedNode {
    /// A stream that one node opened at another.
    final class Link {
        enum Kind { case ingest, copy, upstream(ChannelStateMachine.SubscriptionID) }
        enum State { case opening, open, over }

        let kind: Kind
        let node: NodeID
        let connection: Connection
        var state = State.opening
        /// At the opener of a copy, at the acceptor of a subscription: the receiver in the fan-out.
        var receiver: FanOutStateMachine.ReceiverID?
        /// At the acceptor of an ingest: its number in the machine there.
        var ingest: ChannelStateMachine.IngestID?
        /// Of a copy.
        var term: Epoch = 0

        init(kind: Kind, node: NodeID, connection: Connection) {
            self.kind = kind
            self.node = node
            self.connection = connection
        }
    }

    enum Sink {
        case viewer(SimulatedViewer, connection: Int)
        case link(Link)
    }

    enum IngestSource { case endpoint, link(Link) }

    let index: Int
    let id: NodeID
    unowned let world: World
    var machine: ChannelStateMachine
    var endpoint: SimulatedEndpoint?
    /// The newest connection of the publisher to this endpoint.
    var publisherConnection = 0
    var isAlive = true
    /// The revision of the map that this node has.
    private(set) var revision = 0
    private(set) var isPaused = false
    private var inbox: [() -> Void] = []
    /// Connections whose end this node has heard of.
    var closed: Set<Int> = []
    /// Lives that this node's map calls dead.
    var buried: Set<NodeID> = []
    private var fanOut: FanOutStateMachine?
    private var sinks: [(id: FanOutStateMachine.ReceiverID, sink: Sink)] = []
    /// Streams that this node opened, and those that others opened here.
    private var opened: [Link] = []
    private var accepted: [Link] = []
    private var copies: [Link] = []
    private var copySource: Link?
    private var ingests: [ChannelStateMachine.IngestID: IngestSource] = [:]
    private var nextIngest: ChannelStateMachine.IngestID = 1
    /// How far this node's clock is off, in seconds.
    private let clockOffset: Int64

    init(index: Int, id: NodeID, world: World) {
        clockOffset = [0, 0, -3600, 7200][world.below(4)]
        self.index = index
        self.id = id
        self.world = world
        machine = Self.machine(id)
        tick()
    }

    private static func machine(_ id: NodeID) -> ChannelStateMachine {
        ChannelStateMachine(channel: World.channel, local: id, configuration: ChannelStateMachine.Configuration())
    }

    // MARK: - Life

    func run(_ body: @escaping () -> Void) {
        guard isAlive else { return }
        if isPaused { inbox.append(body) } else { body() }
    }

    func pause() { isPaused = true }

    func end() {
        isAlive = false
        inbox = []
    }

    /// Wakes, believing what it believed, with everything that came in the meantime still to be read.
    func wake() {
        guard isPaused else { return }
        isPaused = false
        let waiting = inbox
        inbox = []
        for body in waiting { run(body) }
    }

    private func tick() {
        world.after(10 * World.millisecond, at: self) { [unowned self] in
            perform(machine.tick(now: world.time))
            endpoint?.tick()
            tick()
        }
    }

    /// A map came. A node that reads of its own death ends, as its process does (D4).
    func learn(_ new: ChannelStateMachine.Assignment, dead: Set<NodeID>, revision: Int) {
        guard revision > self.revision else { return }
        self.revision = revision
        guard !dead.contains(id) else { return world.fenced(self) }
        buried.formUnion(dead)
        let wasPrimary = machine.role == .primary
        if world.mutant == .promotesWithoutRing, new.owner == id, !wasPrimary, machine.assignment.term > 0 {
            machine = Self.machine(id)
        }
        perform(machine.assign(new, now: world.time))
        endpoint?.assign()
        if world.closesLinksOnMap {
            for connection in world.connections(of: self) {
                let other = connection.initiator === self ? connection.acceptor : connection.initiator
                if dead.contains(other.id) { world.cut(connection, noticedWithin: 0...1) }
            }
        }
    }

    /// The owner's hand-over says who is to stand by (D5).
    func setCandidate(_ node: NodeID?) { perform(machine.setCandidate(node, now: world.time)) }

    func endpointClosed(_ connection: Int) {
        guard publisherConnection == connection else { return }
        endpoint?.close()
        endpoint = nil
    }

    func connectionLost(_ connection: Connection) {
        guard closed.insert(connection.id).inserted else { return }
        for link in opened where link.connection === connection && link.state != .over { lost(link, .linkLost) }
        for link in accepted where link.connection === connection && link.state != .over { ended(link) }
    }

    /// For the story of a seed that fails.
    var state: String {
        let ends = (opened + accepted).filter { $0.state != .over }.map { "\($0.kind) \($0.node) \($0.state)" }
        return """
            \(id)\(isAlive ? "" : " dead")\(isPaused ? " stopped" : ""): \
            \(machine.role), term \(machine.assignment.term), \
            frames \(machine.ring.oldest?.description ?? "-") to \(machine.ring.last?.description ?? "-"), \
            \(machine.isFed ? "fed" : "not fed"), \(sinks.count) receivers, endpoint \(endpoint?.state ?? "-"), \(ends)
            """
    }

    // MARK: - The machine's actions

    func perform(_ actions: [ChannelStateMachine.Action]) { for action in actions { perform(action) } }

    private func perform(_ action: ChannelStateMachine.Action) {
        switch action {
        case .distribute(let frames):
            for frame in frames { fanOut?.append(frame) }
            for entry in sinks { serve(entry.id, entry.sink) }
            if world.mutant == .acknowledgesBeforeTheCopy, machine.role == .primary, let last = frames.last?.position {
                for ingest in ingests.keys.sorted() { acknowledge(ingest, last.epoch, last.sequence + 1) }
            }
        case .adopt(let frame):
            if world.mutant != .forgetsRepeatedConfigurations { fanOut?.adopt(repeated: frame) }
        case .beginLive(let position):
            guard world.mutant != .showsOldPictures else { return }
            fanOut?.setLiveFloor(position)
            for entry in sinks { serve(entry.id, entry.sink) }
        case .acknowledge(let id, let epoch, let next): acknowledge(id, epoch, next)
        // A gap that the primary notices is asked for again, and then no harm is done.
        case .resume where world.mutant == .ingestsOneTooLate: break
        case .resume(let id, let next):
            switch ingests[id] {
            case .endpoint: endpoint?.resume(next)
            case .link(let link): send(link) { $0.opener(link) { _, endpoint in endpoint?.resume(next) } }
            case nil: break
            }
        case .endIngest(let id, let error):
            switch ingests.removeValue(forKey: id) {
            case .endpoint: endpoint?.localEnded(id, error.code)
            case .link(let link): send(link) { node in node.opener(link) { _, _ in node.lost(link, error.code) } }
            case nil: break
            }
        case .openCopy(let node): openCopy(at: node)
        case .closeCopy(let node):
            for copy in copies where copy.node == node { close(copy) }
            copies.removeAll { $0.node == node }
        case .refuseCopy:
            guard let link = copySource, world.mutant != .dropsCopiesSilently else { return }
            copySource = nil
            accepted.removeAll { $0 === link }
            refuse(link, .staleEpoch)
        case .announcePublisher(let node):
            let publisher = machine.publisherIdentity
            for copy in copies where copy.node == node && copy.state == .open {
                send(copy) { node in
                    guard node.copySource === copy else { return }
                    node.machine.publisherChanged(
                        term: copy.term, epoch: publisher.epoch, instance: publisher.instance)
                }
            }
        case .confirmCopy(let epoch, let next):
            guard let link = copySource else { return }
            let claimed = world.mutant == .confirmsBeforeItHolds ? next + 4 : next
            send(link) { node in
                node.opener(link) { node, _ in
                    guard node.copies.contains(where: { $0 === link }) else { return }
                    let isTakenForAll = node.world.mutant == .countsOneCopyForAll
                    for copy in node.copies where copy === link || isTakenForAll {
                        node.perform(
                            node.machine.copyConfirmed(
                                at: copy.node, epoch: epoch, next: claimed, now: node.world.time))
                    }
                }
            }
        case .subscribe(let id, let node, let after): subscribe(id, at: node, after: after)
        case .unsubscribe(let id):
            for link in opened {
                if case .upstream(id) = link.kind { close(link) }
            }
        }
    }

    private func acknowledge(_ ingest: ChannelStateMachine.IngestID, _ epoch: UInt32, _ next: UInt64) {
        switch ingests[ingest] {
        case .endpoint: endpoint?.acknowledged(epoch, next)
        case .link(let link): send(link) { $0.opener(link) { _, endpoint in endpoint?.acknowledged(epoch, next) } }
        case nil: break
        }
    }

    // MARK: - Streams that this node opens

    /// Asks another node; `lost` follows after 500 ms without an answer, at once without a connection.
    private func open(_ kind: Link.Kind, at node: NodeID, _ ask: @escaping (SimulatedNode, Link) -> Void) -> Link? {
        guard let connection = world.connection(from: self, to: node) else { return nil }
        let link = Link(kind: kind, node: node, connection: connection)
        opened.removeAll { $0.state == .over }
        opened.append(link)
        send(link) { ask($0, link) }
        world.after(500 * World.millisecond, at: self) { [unowned self] in
            if case .opening = link.state { lost(link, .deadlineExceeded) }
        }
        return link
    }

    private func send(_ link: Link, _ body: @escaping (SimulatedNode) -> Void) {
        world.send(on: link.connection, from: self, body)
    }

    /// Runs something at the link's opener, unless the link is over there.
    private func opener(_ link: Link, _ body: (SimulatedNode, SimulatedEndpoint?) -> Void) {
        guard link.state == .open else { return }
        if case .ingest = link.kind {
            guard let endpoint, endpoint.link === link else { return }
            body(self, endpoint)
        } else {
            body(self, nil)
        }
    }

    /// The other end is told, and what still comes is ignored.
    func close(_ link: Link) {
        guard link.state != .over else { return }
        link.state = .over
        if let receiver = link.receiver, case .copy = link.kind { leave(receiver) }
        send(link) { $0.ended(link) }
    }

    private func lost(_ link: Link, _ code: ErrorCode) {
        guard link.state != .over else { return }
        link.state = .over
        switch link.kind {
        case .ingest: endpoint?.lost(link, code)
        case .copy:
            if let receiver = link.receiver { leave(receiver) }
            guard copies.contains(where: { $0 === link }) else { return }
            perform(machine.copyFailed(at: link.node, now: world.time))
        case .upstream(let id): perform(machine.subscriptionLost(id, now: world.time))
        }
    }

    func openIngest(_ offer: PublishOffer, at node: NodeID) -> Link? {
        open(.ingest, at: node) { $0.acceptIngest($1, offer) }
    }

    func sendFrames(_ frames: [RelayFrame], on link: Link) {
        let bytes = frames.reduce(into: ByteBuffer()) { $0.writeImmutableBuffer($1.encoded) }
        send(link) { node in
            guard let ingest = link.ingest, node.accepted.contains(where: { $0 === link }) else { return }
            node.perform(node.machine.ingest(ingest, SimulatedFrames.decode(bytes), now: node.world.time))
        }
    }

    private func openCopy(at node: NodeID) {
        let (term, publisher, liveFrom) = (machine.assignment.term, machine.publisherIdentity, machine.liveFrom)
        guard
            let link = open(
                .copy, at: node, { $0.acceptCopy($1, term, publisher.epoch, publisher.instance, liveFrom) })
        else {
            world.after(0, at: self) { [unowned self] in perform(machine.copyFailed(at: node, now: world.time)) }
            return
        }
        link.term = term
        copies.append(link)
    }

    private func copyAccepted(_ link: Link, after: FramePosition?) {
        guard link.state == .opening, copies.contains(where: { $0 === link }) else { return }
        link.state = .open
        perform(machine.copyOpened(at: link.node, after: after, now: world.time))
        guard link.state == .open else { return }
        link.receiver = join(.standby, after: after, .link(link))
    }

    private func subscribe(_ id: ChannelStateMachine.SubscriptionID, at node: NodeID, after: FramePosition?) {
        var after = after
        if world.mutant == .subscribesTooLate { after?.sequence += 9 }
        let term = machine.assignment.term
        guard open(.upstream(id), at: node, { $0.acceptSubscription($1, term: term, after: after) }) != nil else {
            return world.after(0, at: self) { [unowned self] in
                perform(machine.subscriptionLost(id, now: world.time))
            }
        }
    }

    // MARK: - Streams that others open here

    private func refuse(_ link: Link, _ code: ErrorCode) { send(link) { $0.lost(link, code) } }

    private func acceptIngest(_ link: Link, _ offer: PublishOffer) {
        guard let next = takeIngest(offer, .link(link)) else { return }
        switch next {
        case .failure(let error): refuse(link, error.code)
        case .success(let (ingest, epoch, next)):
            link.ingest = ingest
            accept(link)
            send(link) { node in
                guard link.state == .opening else { return }
                link.state = .open
                node.endpoint?.opened(link, epoch, next)
            }
        }
    }

    /// Opens the stream of a publisher here, be it at this node's endpoint or another's.
    func takeIngest(
        _ offer: PublishOffer, _ source: IngestSource
    ) -> Result<(ChannelStateMachine.IngestID, UInt32, UInt64), ApusError>? {
        let ingest = nextIngest
        nextIngest += 1
        let wallSeconds = UInt32(clamping: 1_800_000_000 + clockOffset + Int64(world.now / 1_000_000_000))
        let (answer, actions) = machine.openIngest(ingest, offer, wallSeconds: wallSeconds, now: world.time)
        defer { perform(actions) }
        switch answer {
        case .refused(let error): return .failure(error)
        case .accepted(let epoch, let next, _):
            ingests[ingest] = source
            return .success((ingest, epoch, world.mutant == .ingestsOneTooLate ? next + 1 : next))
        }
    }

    func closeIngest(_ id: ChannelStateMachine.IngestID) {
        guard ingests.removeValue(forKey: id) != nil else { return }
        machine.closeIngest(id)
    }

    private func accept(_ link: Link) { accepted.append(link) }

    /// The opener ended a stream, or its connection is gone.
    private func ended(_ link: Link) {
        guard let place = accepted.firstIndex(where: { $0 === link }) else { return }
        accepted.remove(at: place)
        switch link.kind {
        case .ingest: if let ingest = link.ingest { closeIngest(ingest) }
        case .copy:
            guard copySource === link else { return }
            copySource = nil
            perform(machine.copyClosed(term: link.term, now: world.time))
        case .upstream: if let receiver = link.receiver { leave(receiver) }
        }
    }

    private func acceptCopy(
        _ link: Link, _ term: Epoch, _ epoch: UInt32, _ instance: UInt64, _ liveFrom: FramePosition?
    ) {
        let claimed = world.mutant == .ignoresTerms ? max(term, machine.assignment.term + 1) : term
        let (answer, actions) = machine.openCopy(
            term: claimed, epoch: epoch, instance: instance, liveFrom: liveFrom, now: world.time)
        perform(actions)
        switch answer {
        case .refused(let error): refuse(link, error.code)
        case .accepted(let after):
            link.term = claimed
            copySource = link
            accept(link)
            send(link) { $0.copyAccepted(link, after: after) }
        }
    }

    private func acceptSubscription(_ link: Link, term: Epoch, after: FramePosition?) {
        let known = machine.assignment.term
        guard known >= term else { return refuse(link, .staleEpoch) }
        guard machine.role != .edge else { return refuse(link, .moved) }
        guard case .upstream(let id) = link.kind else { return }
        accept(link)
        let liveFrom = machine.liveFrom
        send(link) { node in
            guard link.state == .opening else { return }
            link.state = .open
            node.perform(node.machine.subscribed(id, term: known, liveFrom: liveFrom, now: node.world.time))
        }
        link.receiver = join(.edge, after: after, .link(link))
    }

    // MARK: - Receivers

    func join(_ kind: FanOutStateMachine.Kind, after: FramePosition?, _ sink: Sink) -> FanOutStateMachine.ReceiverID {
        var after = after
        if world.mutant == .resumesFromInsteadOfAfter, let position = after, position.sequence > 0 {
            after?.sequence = position.sequence - 1
        }
        machine.receiverWants(after: after)
        machine.receiverHas(after)
        var fanOut =
            self.fanOut
            ?? FanOutStateMachine(
                ring: machine.ring, liveFloor: world.mutant == .showsOldPictures ? nil : machine.liveFloor,
                batchByteCountMax: 400)
        let receiver = fanOut.add(kind, after: after)
        self.fanOut = fanOut
        sinks.append((receiver, sink))
        if kind != .standby, fanOut.viewerCount == 1 || after != nil {
            perform(machine.receiversChanged(hasReceivers: true, now: world.time))
        }
        serve(receiver, sink)
        return receiver
    }

    func leave(_ receiver: FanOutStateMachine.ReceiverID) {
        let hadViewers = (fanOut?.viewerCount ?? 0) > 0
        guard fanOut?.remove(receiver) ?? false else { return }
        sinks.removeAll { $0.id == receiver }
        if hadViewers, fanOut?.viewerCount == 0 {
            perform(machine.receiversChanged(hasReceivers: false, now: world.time))
        }
    }

    /// This node is an edge whose frames begin, or will begin, after what a receiver wants.
    func isLate(for position: FramePosition) -> Bool {
        guard machine.role == .edge else { return false }
        guard let oldest = machine.ring.oldest else { return false }
        return oldest.epoch == position.epoch && oldest.sequence > position.sequence + 1
    }

    private func serve(_ receiver: FanOutStateMachine.ReceiverID, _ sink: Sink) {
        while let batch = fanOut?.nextBatch(for: receiver) {
            switch sink {
            case .viewer(let viewer, let connection): viewer.send(batch, on: connection, from: self)
            case .link(let link): forward(batch.bytes, on: link)
            }
            guard batch.hasMore else { return }
        }
    }

    private func forward(_ bytes: ByteBuffer, on link: Link) {
        send(link) { node in
            switch link.kind {
            case .copy:
                guard node.copySource === link else { return }
                node.perform(node.machine.copied(SimulatedFrames.decode(bytes), term: link.term))
            case .upstream(let id):
                guard link.state == .open else { return }
                node.perform(node.machine.received(id, SimulatedFrames.decode(bytes)))
            case .ingest: return
            }
        }
    }
}
