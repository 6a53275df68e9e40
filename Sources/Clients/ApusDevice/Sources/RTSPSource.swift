import ApusClient
import ApusCore
import ApusMedia
import ApusThreads
import CApusMedia
public import Logging
import NIOCore

/// Receives a network camera's stream over RTSP (TCP), and reconnects after every failure.
///
/// If the camera cannot be reached the source tries again, after waits of 0.5 to 15 s with jitter. Times then continue
/// with the elapsed time added. Only two errors end the source: an invalid address, and a name or password that the
/// camera refuses.
///
/// Concurrency model: see ``MediaSource``.
public final class RTSPSource: MediaSource {
    /// The time-out of opening, up to the first packet.
    public static let openTimeout = Duration.seconds(10)
    /// The longest silence of the camera.
    public static let readTimeout = Duration.seconds(10)
    /// The most packets that are read before each track's configuration must be known.
    static let scanCountMax = 600

    private let url: String
    private let log: Logger
    private let thread = SourceThread()

    /// - Parameter url: `rtsp://` or `rtsps://`, with user and password if the camera requires them. Logs and errors
    ///   omit them.
    public init(url: String, log: Logger) {
        self.url = url
        self.log = log
    }

    public func start(_ deliver: @escaping @Sendable (SourceEvent) -> Void) {
        thread.start(name: "apus-rtsp", onEnd: SourceEvent.end(deliver)) { [self] interrupt throws(ApusError) in
            guard url.hasPrefix("rtsp://") || url.hasPrefix("rtsps://") else {
                throw ApusError(
                    .configurationInvalid,
                    "the camera's address \(Self.shown(url)) does not start with rtsp:// or rtsps://")
            }
            try run(interrupt, deliver)
        }
    }

    public func stop() { thread.stop() }

    /// The address without user and password.
    static func shown(_ url: String) -> String {
        guard let colon = url.firstIndex(of: ":"), url[colon...].hasPrefix("://") else { return url }
        let start = url.index(colon, offsetBy: 3)
        let host = url[start...].prefix { $0 != "/" }
        guard let at = host.lastIndex(of: "@") else { return url }
        return String(url[..<start] + url[url.index(after: at)...])
    }

    private func run(_ interrupt: LibAVInterrupt, _ deliver: (SourceEvent) -> Void) throws(ApusError) {
        var random = SeededRandom(seed: .random(in: 0...(.max)))
        var reconnect = Reconnect()
        var line = CameraLine()
        while !thread.isStopped {
            let start = MonotonicTime.now()
            do throws(DemuxerError) {
                try play(&line, interrupt, deliver)
                log.notice("The camera ended its stream", metadata: [LogKey.address: "\(Self.shown(url))"])
            } catch {
                if thread.isStopped { return }
                if error.number == APUS_AV_UNAUTHORIZED || error.number == APUS_AV_FORBIDDEN {
                    throw ApusError(
                        .mediaUnreadable,
                        "the camera at \(Self.shown(url)) refuses this name and password; "
                            + "correct them in the address"
                    )
                }
                var facts = Logger.facts(of: error.error)
                facts[LogKey.address] = "\(Self.shown(url))"
                log.warning("The camera cannot be reached", metadata: facts)
            }
            let wait = reconnect.nextWait(lasted: MonotonicTime.now() - start, unit: random.nextUnit())
            guard (MonotonicTime.now() + wait).sleep(unless: { thread.isStopped }) else { return }
        }
    }

    /// Plays one connection until it ends.
    private func play(
        _ line: inout CameraLine, _ interrupt: LibAVInterrupt, _ deliver: (SourceEvent) -> Void
    ) throws(DemuxerError) {
        interrupt.setDeadline(in: Self.openTimeout)
        defer { interrupt.setDeadline(in: nil) }
        let demuxer = try Demuxer(
            address: url, name: "the camera at \(Self.shown(url))",
            options: [("rtsp_transport", "tcp"), ("allowed_media_types", "video+audio")], interrupt: interrupt)
        for omission in demuxer.omissions {
            log.warning(
                "A track is ignored", metadata: [LogKey.address: "\(Self.shown(url))", LogKey.reason: "\(omission)"])
        }
        line.begin(tracks: demuxer.tracks)
        var scanned = 0
        while !thread.isStopped {
            interrupt.setDeadline(in: Self.readTimeout)
            guard let packet = try demuxer.read() else { return }
            for event in line.take(packet) {
                switch event {
                case .configuration(let track, let configuration): deliver(.configuration(track: track, configuration))
                case .frame(let frame): frame.deliver(to: deliver)
                }
            }
            if !line.isConfigured {
                scanned += 1
                guard scanned < Self.scanCountMax else {
                    throw DemuxerError(
                        0,
                        ApusError(
                            .mediaUnreadable,
                            "the camera at \(Self.shown(url)) does not send the configuration of a decoder"))
                }
            }
        }
    }
}

/// One camera's frames on one time line, over many connections.
///
/// Frames are emitted once the configuration of every track is known, from each connection's first key frame on. A
/// configuration is repeated only if it differs. Frames of one connection keep the camera's order.
struct CameraLine {
    enum Event {
        case configuration(track: UInt8, TrackConfiguration)
        case frame(SourceFrame)
    }

    private var tracks: [Demuxer.Track] = []
    private var shapers: [TrackShaper] = []
    private var timeline = MediaTimeline(trackCount: 0)
    private var told: [TrackConfiguration] = []
    private var hasKey = false
    private var lastFrame: MonotonicTime?
    private(set) var isConfigured = false

    /// A connection starts.
    mutating func begin(tracks: [Demuxer.Track], at now: MonotonicTime = .now()) {
        self.tracks = tracks
        shapers = tracks.map { TrackShaper(input: $0.input) }
        if let lastFrame, told.count == tracks.count {
            timeline.resume(after: (now - lastFrame).nanoseconds / 1000)
        } else {
            let end = timeline.end
            timeline = MediaTimeline(trackCount: tracks.count)
            timeline.resume(after: end + (lastFrame.map { (now - $0).nanoseconds / 1000 } ?? 0))
        }
        hasKey = false
        isConfigured = false
    }

    /// One packet's events.
    mutating func take(_ packet: Demuxer.Packet, at now: MonotonicTime = .now()) -> [Event] {
        guard let shaped = shapers[packet.track].shape(packet.bytes, isKey: packet.isKey) else { return [] }
        var events: [Event] = []
        if !isConfigured {
            let known = shapers.compactMap(\.configuration)
            guard known.count == shapers.count else { return [] }
            isConfigured = true
            for (index, configuration) in known.enumerated()
            where told.count != known.count || told[index] != configuration {
                events.append(.configuration(track: UInt8(index), configuration))
            }
            told = known
        }
        let isVideo = tracks[packet.track].input.codec.isVideo
        if isVideo, packet.isKey { hasKey = true }
        guard hasKey, shaped.payload.readableBytes <= MediaFrame.payloadByteCountMax else { return events }
        let place = timeline.place(track: packet.track, pts: packet.pts, dts: packet.dts, duration: packet.duration)
        lastFrame = now
        var flags: MediaFlags = isVideo && packet.isKey ? [.key] : []
        if shaped.isDiscardable { flags.insert(.discardable) }
        if let changed = shaped.configuration { told[packet.track] = changed }
        events.append(
            .frame(
                SourceFrame(
                    track: UInt8(packet.track), pts: place.pts, dts: place.dts, flags: flags, payload: shaped.payload,
                    configuration: shaped.configuration)))
        return events
    }
}
