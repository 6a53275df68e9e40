import ApusChannels
import ApusCore
import ApusMedia
import ApusWire
import NIOCore

/// Frames as they go over links.
enum SimulatedFrames {
    static func decode(_ bytes: ByteBuffer) -> [RelayFrame] {
        var decoder = LinkFrameDecoder(lengthMax: 1 << 20)
        decoder.append(bytes)
        var frames: [RelayFrame] = []
        while let frame = try? decoder.next(), let relayed = try? RelayFrame(copying: frame.payload, linkHeader: header)
        {
            frames.append(relayed)
        }
        return frames
    }

    static func header(_ byteCount: Int, _ buffer: inout ByteBuffer) {
        LinkFrame.encodeHeader(kind: .media, correlation: 1, payloadByteCount: byteCount, into: &buffer)
    }

    /// A frame whose bytes are `content`; the first two of an epoch are the configurations.
    static func frame(_ position: FramePosition, isKey: Bool, isVideo: Bool, content: UInt64) -> RelayFrame {
        var payload = ByteBuffer()
        var flags: MediaFlags = isKey ? .key : []
        if position.sequence < 2 {
            flags = .configuration
            TrackConfiguration(
                codec: isVideo ? .h264 : .aac, trackCount: 2, first: 640, second: 360, third: 0,
                extraData: withUnsafeBytes(of: content.bigEndian) { Array($0) }
            ).encode(into: &payload)
        } else {
            payload.writeInteger(content)
        }
        let header = MediaHeader(
            position: position, ptsMicroseconds: Int64(position.sequence) * 20_000, flags: flags, track: isVideo ? 0 : 1
        )
        var encoded = ByteBuffer()
        Self.header(MediaHeader.byteCount + payload.readableBytes, &encoded)
        MediaFrame(header: header, payload: payload).encode(into: &encoded)
        return RelayFrame(header: header, encoded: encoded)
    }
}

/// A node's endpoint for the publisher: what `PublisherEndpoint` does.
final class SimulatedEndpoint {
    private enum Step {
        case local(ChannelStateMachine.IngestID)
        case opening(SimulatedNode.Link)
        case remote(SimulatedNode.Link)
        case waiting(until: UInt64)
        case superseded
        case closed
    }

    private unowned let node: SimulatedNode
    private let connection: Int
    private var offer: PublishOffer
    private var step = Step.waiting(until: 0)
    private var retryDelay = 10 * World.millisecond

    init(node: SimulatedNode, connection: Int, offer: PublishOffer) {
        self.node = node
        self.connection = connection
        self.offer = offer
    }

    private var world: World { node.world }
    /// For the story of a seed that fails.
    var state: String { "\(connection) \(step) from \(offer.epoch):\(offer.oldest)" }

    var link: SimulatedNode.Link? {
        switch step {
        case .opening(let link), .remote(let link): link
        case .local, .waiting, .superseded, .closed: nil
        }
    }

    func assign() {
        let owner = node.machine.assignment.owner
        switch step {
        case .closed, .superseded: return
        case .local: if node.machine.role == .primary { return }
        case .opening(let link), .remote(let link):
            if link.node == owner { return }
            node.close(link)
        case .waiting(let until): if world.now < until { return }
        }
        open()
    }

    func tick() {
        if case .waiting(let until) = step, world.now >= until { open() }
    }

    private func open() {
        if node.machine.role == .primary {
            switch node.takeIngest(offer, .endpoint) {
            case .success(let (ingest, epoch, next)):
                step = .local(ingest)
                opened(epoch, next)
            case .failure(let error): refused(error.code)
            case nil: wait()
            }
        } else if let owner = node.machine.assignment.owner, let link = node.openIngest(offer, at: owner) {
            step = .opening(link)
        } else {
            wait()
        }
    }

    private func wait() {
        step = .waiting(until: world.now + retryDelay)
        retryDelay = min(retryDelay * 2, 200 * World.millisecond)
    }

    private func opened(_ epoch: UInt32, _ next: UInt64) {
        if offer.takesEpoch { (offer.epoch, offer.resumes) = (epoch, true) }
        retryDelay = 10 * World.millisecond
        world.publisher.tell(connection, from: node) { $0.resume(epoch, next) }
    }

    private func refused(_ code: ErrorCode) {
        guard code == .stalePublisher else { return wait() }
        step = .closed
        world.publisher.tell(connection, from: node) { $0.refused() }
    }

    func opened(_ link: SimulatedNode.Link, _ epoch: UInt32, _ next: UInt64) {
        guard case .opening(let current) = step, current === link else { return }
        step = .remote(link)
        opened(epoch, next)
    }

    func lost(_ link: SimulatedNode.Link, _ code: ErrorCode) {
        switch step {
        case .opening(let current) where current === link: refused(code)
        case .remote(let current) where current === link:
            ended(code)
        case .local, .opening, .remote, .waiting, .superseded, .closed: return
        }
    }

    func localEnded(_ id: ChannelStateMachine.IngestID, _ code: ErrorCode) {
        guard case .local(id) = step else { return }
        ended(code)
    }

    private func ended(_ code: ErrorCode) {
        switch code {
        case .stalePublisher: refused(code)
        case .kicked: step = .superseded
        default:
            step = .waiting(until: 0)
            assign()
        }
    }

    func acknowledged(_ epoch: UInt32, _ next: UInt64) {
        if epoch == offer.epoch { offer.oldest = max(offer.oldest, next) }
        world.publisher.tell(connection, from: node) { $0.acknowledged(epoch, next) }
    }

    func resume(_ next: UInt64) {
        let epoch = offer.epoch
        world.publisher.tell(connection, from: node) { $0.resume(epoch, next) }
    }

    func send(_ frames: [RelayFrame]) {
        switch step {
        case .local(let id): node.perform(node.machine.ingest(id, frames, now: world.time))
        case .remote(let link): node.sendFrames(frames, on: link)
        case .superseded: open()
        case .opening, .waiting, .closed: return
        }
    }

    func close() {
        switch step {
        case .local(let id): node.closeIngest(id)
        case .opening(let link), .remote(let link): node.close(link)
        case .waiting, .superseded, .closed: break
        }
        step = .closed
    }
}

/// The camera: numbers its frames, keeps what is not acknowledged, and goes to another endpoint when its own is silent.
final class SimulatedPublisher {
    private unowned let world: World
    /// What the cluster gave this run; nil before.
    private(set) var epoch: UInt32?
    private var newestEpoch: UInt32 = 0
    private var instance: UInt64 = 0
    private var window: [(isKey: Bool, isVideo: Bool, content: UInt64)] = []
    /// All of this run.
    private var contents: [UInt64] = []
    private var oldest: UInt64 = 0
    private(set) var nextSequence: UInt64 = 0
    private var cursor: UInt64 = 0
    private var framesToKey = 0
    private var isEnded = false
    /// Names the connection in use; what comes over older ones is ignored.
    private var connection = 0
    private(set) var node: SimulatedNode?
    private var isOpen = false
    private var arrivals: (up: UInt64, down: UInt64) = (0, 0)

    init(world: World) { self.world = world }

    var windowCount: Int { window.count }
    /// For the story of a seed that fails.
    var state: String {
        "publisher at \(node?.id.description ?? "-") by \(connection), \(isOpen ? "open" : "not open"), "
            + "\(epoch ?? 0):\(oldest) to \(nextSequence), cursor \(cursor)"
    }
    var acknowledged: UInt64 { oldest }

    /// A new start: another instance, numbered from 0.
    func start() {
        epoch = nil
        instance = world.random.next()
        (contents, window) = ([], [])
        // A camera that brings its epoch has it from its clock, which may have gone back.
        if world.mutant == .bringsEpochOfItsClock { take(1_800_000_000 + UInt32(world.below(7200))) }
        (oldest, nextSequence, cursor, framesToKey) = (0, 0, 0, 0)
        connect()
    }

    func produce() {
        guard !isEnded else { return }
        let isVideo = nextSequence < 2 ? nextSequence == 0 : nextSequence % 3 != 0
        var isKey = !isVideo
        if isVideo, nextSequence >= 2 {
            isKey = framesToKey == 0
            framesToKey = isKey ? 5 + world.below(20) : framesToKey - 1
        }
        let content = world.random.next()
        contents.append(content)
        if let epoch { world.published[epoch] = contents }
        window.append((isKey, isVideo, content))
        nextSequence += 1
        write()
        world.after(20 * World.millisecond) { [unowned self] in produce() }
    }

    func end() { isEnded = true }

    private func write() {
        guard isOpen, let epoch, cursor < nextSequence else { return }
        let frames = (cursor..<nextSequence).map { sequence in
            let entry = window[Int(sequence - oldest)]
            return SimulatedFrames.frame(
                FramePosition(epoch: epoch, sequence: sequence), isKey: entry.isKey, isVideo: entry.isVideo,
                content: entry.content)
        }
        cursor = nextSequence
        send { $0.endpoint?.send(frames) }
    }

    /// Leaves the endpoint in use, if any, for one that answers.
    func connect() {
        send { [connection] node in node.endpointClosed(connection) }
        connection += 1
        isOpen = false
        let endpoints = world.endpoints
        guard !endpoints.isEmpty else { return world.after(20 * World.millisecond) { [unowned self] in connect() } }
        let node = endpoints[world.below(endpoints.count)]
        self.node = node
        arrivals = (0, 0)
        let isGiven = epoch != nil && world.mutant != .bringsEpochOfItsClock
        let offer = PublishOffer(epoch: epoch ?? 0, instance: instance, oldest: oldest, resumes: isGiven)
        let connection = connection
        send { node in
            node.endpoint?.close()
            let endpoint = SimulatedEndpoint(node: node, connection: connection, offer: offer)
            node.endpoint = endpoint
            node.publisherConnection = connection
            endpoint.assign()
        }
    }

    private func send(_ body: @escaping (SimulatedNode) -> Void) {
        guard let node else { return }
        let connection = connection
        arrivals.up = max(world.now + World.millisecond, arrivals.up + 1)
        world.after(arrivals.up - world.now, at: node) { [unowned node] in
            if node.publisherConnection <= connection { body(node) }
        }
    }

    func tell(_ connection: Int, from node: SimulatedNode, _ body: @escaping (SimulatedPublisher) -> Void) {
        guard connection == self.connection else { return }
        arrivals.down = max(world.now + World.millisecond, arrivals.down + 1)
        world.after(arrivals.down - world.now) { [unowned self] in
            if connection == self.connection { body(self) }
        }
    }

    /// A run has one epoch, higher than those of all runs before.
    private func take(_ given: UInt32) {
        guard given != epoch else { return }
        if let epoch { return world.fail("the publisher's epoch was \(epoch) and is \(given)") }
        if given <= newestEpoch, world.mutant != .bringsEpochOfItsClock {
            world.fail("the epoch \(given) was given after \(newestEpoch)")
        }
        (epoch, newestEpoch) = (given, given)
        world.published[given] = contents
    }

    func resume(_ epoch: UInt32, _ next: UInt64) {
        take(epoch)
        isOpen = true
        cursor = min(max(next, oldest), nextSequence)
        write()
    }

    func acknowledged(_ epoch: UInt32, _ next: UInt64) {
        guard epoch == self.epoch else { return }
        let next = min(next, nextSequence)
        guard next > oldest else { return }
        world.checkHeld(FramePosition(epoch: epoch, sequence: next - 1))
        window.removeFirst(Int(next - oldest))
        oldest = next
        cursor = max(cursor, oldest)
    }

    func refused() { world.fail("the only publisher was refused") }
}

/// An app: takes frames once and in order, and goes on elsewhere after its last.
final class SimulatedViewer {
    private unowned let world: World
    let name: Int
    private var connection = 0
    private(set) var node: SimulatedNode?
    private var receiver: FanOutStateMachine.ReceiverID?
    private var arrival: (up: UInt64, down: UInt64) = (0, 0)
    private(set) var last: FramePosition?
    private(set) var frameCount = 0
    private(set) var skippedCount: UInt64 = 0
    private(set) var isWatching = false
    /// It once went on at an edge that other viewers had made begin after its last frame: what lies
    /// between is announced as skipped, since an edge does not go back.
    private(set) var isLateForEdge = false
    /// Frames were left out, or none came yet: the next may be any key frame, with configurations before it.
    private var mayStart = true
    /// When the live picture was asked for; nil once it began.
    private var askedLiveAt: UInt64?
    /// Tracks whose configuration of an epoch came.
    private var configured: Set<UInt64> = []

    init(name: Int, world: World) {
        self.name = name
        self.world = world
    }

    /// Watches as if for the first time.
    func watchAnew(at node: SimulatedNode?) {
        guard !isWatching else { return }
        (last, mayStart, configured) = (nil, true, [])
        connect(preferring: node)
    }

    func connect(preferring preferred: SimulatedNode? = nil) {
        disconnect()
        isWatching = true
        let endpoints = world.endpoints
        guard !endpoints.isEmpty else { return world.after(20 * World.millisecond) { [unowned self] in connect() } }
        let node = endpoints.first { $0 === preferred } ?? endpoints[world.below(endpoints.count)]
        self.node = node
        askedLiveAt = last == nil ? world.now : nil
        let (connection, last) = (connection, last)
        send { [unowned self] node in
            if let last { isLateForEdge = isLateForEdge || node.isLate(for: last) }
            let receiver = node.join(.viewer, after: last, .viewer(self, connection: connection))
            if connection == self.connection { self.receiver = receiver } else { node.leave(receiver) }
        }
    }

    /// Leaves; the node hears of it a little later.
    func disconnect() {
        if let receiver { send { $0.leave(receiver) } }
        receiver = nil
        node = nil
        isWatching = false
        connection += 1
        arrival = (0, 0)
    }

    private func send(_ body: @escaping (SimulatedNode) -> Void) {
        guard let node else { return }
        arrival.up = max(world.now + World.millisecond, arrival.up + 1)
        world.after(arrival.up - world.now, at: node) { [unowned node] in body(node) }
    }

    func send(_ batch: FanOutStateMachine.Batch, on connection: Int, from node: SimulatedNode) {
        guard connection == self.connection else { return }
        arrival.down = max(world.now + World.millisecond, arrival.down + 1)
        world.after(arrival.down - world.now) { [unowned self] in
            guard connection == self.connection, isWatching else { return }
            if batch.skippedCount > 0 {
                skippedCount += batch.skippedCount
                mayStart = true
            }
            for frame in SimulatedFrames.decode(batch.bytes) { take(frame) }
        }
    }

    private func take(_ frame: RelayFrame) {
        let position = frame.position
        let track = UInt64(position.epoch) << 8 | UInt64(frame.track)
        if frame.flags.contains(.repeated) {
            configured.insert(track)
            return
        }
        let isStart = frame.flags.contains(.key) && frame.track == 0
        if let last {
            guard position > last else { return world.fail("viewer \(name) got \(position) again after \(last)") }
            let isNext = position.epoch == last.epoch ? position.sequence == last.sequence + 1 : position.sequence == 0
            if position.epoch == last.epoch, !isNext, !mayStart {
                world.fail("viewer \(name) got \(position) right after \(last)")
            }
            if !isNext, !isStart, !frame.flags.contains(.configuration) {
                world.fail("viewer \(name) went on at \(position), which is no key frame, after \(last)")
            }
        } else if !isStart, !frame.flags.contains(.configuration) {
            world.fail("viewer \(name) began at \(position), which is no key frame")
        }
        if isStart, let askedAt = askedLiveAt {
            askedLiveAt = nil
            world.checkLive(name, began: position, askedAt: askedAt)
        }
        if frame.flags.contains(.configuration) { configured.insert(track) }
        if !configured.contains(track) {
            world.fail("viewer \(name) got \(position) before the configuration of its track")
        }
        guard let contents = world.published[position.epoch], Int(position.sequence) < contents.count,
            frame.encoded.getInteger(at: frame.encoded.writerIndex - 8, as: UInt64.self)
                == contents[Int(position.sequence)]
        else { return world.fail("viewer \(name) got other bytes at \(position) than the publisher sent") }
        mayStart = false
        last = position
        frameCount += 1
    }
}
