package import ApusCore
package import ApusMedia
package import NIOCore

/// One camera's frames on one time line, over many connections.
///
/// Frames are emitted once the configuration of every track is known, from each connection's first key frame on, and
/// again from the next one after a picture that was too large. A configuration is repeated only if it differs. Frames
/// of one connection keep the camera's order. Pure value.
package struct CameraLine {
    package enum Event {
        case configuration(track: UInt8, TrackConfiguration)
        case frame(SourceFrame)
        /// A picture or a frame of sound was dropped: it has more than ``MediaFrame/joinedByteCountMax`` bytes.
        case tooLarge(track: UInt8)
    }

    private struct Track {
        let isVideo: Bool
        let payloadType: UInt8
        var source: UInt32?
        var clock: RTPClock
        var packets: RTPDepacketizer
        var shaper: TrackShaper
        var lastTime: Int64?
        /// The shortest step between two frames, in microseconds.
        var frameDuration: Int64
        /// The camera sends B frames: times go back in the order of decoding.
        var hasReordering = false

        init(_ track: CameraTrack) {
            isVideo = track.input.codec.isVideo
            payloadType = track.media.payloadType
            clock = RTPClock(rate: track.media.clockRate)
            packets = RTPDepacketizer(track)
            shaper = TrackShaper(input: track.input)
            let (samples, rate) = (Int64(track.input.third), Int64(max(track.input.first, 1)))
            frameDuration = track.input.codec.isVideo ? 40_000 : samples > 0 ? samples * 1_000_000 / rate : 20_000
        }

        /// Notes the time of a frame.
        mutating func note(_ time: Int64) {
            defer { lastTime = time }
            guard isVideo, let lastTime else { return }
            if time < lastTime { hasReordering = true }
            let step = abs(time - lastTime)
            if (1000...1_000_000).contains(step) { frameDuration = min(frameDuration, step) }
        }
    }

    private var tracks: [Track] = []
    /// One for all connections. The clocks of the tracks decide what is a jump.
    private var timeline = MediaTimeline(trackCount: 0, pauseMax: MediaTimeline.lineMax)
    private var announced: [TrackConfiguration] = []
    private var hasKey = false
    /// This connection has a frame on the time line.
    private var hasFrame = false
    private var start: MonotonicTime?
    private var lastFrame: MonotonicTime?
    package private(set) var isConfigured = false

    package init() {}

    /// A connection starts. Its first frame says how long the camera was away.
    package mutating func begin(tracks: [CameraTrack], at _: MonotonicTime) {
        self.tracks = tracks.map { Track($0) }
        (hasKey, hasFrame, isConfigured, start) = (false, false, false, nil)
    }

    /// A packet of a track's reports.
    package mutating func take(report bytes: ByteBuffer, of track: Int) {
        guard let report = RTPSenderReport(bytes) else { return }
        tracks[track].clock.take(report)
        guard let video = tracks.firstIndex(where: \.isVideo), video != track else { return }
        tracks[track].clock.follow(tracks[video].clock)
    }

    /// The events of one packet.
    package mutating func take(_ bytes: ByteBuffer, of index: Int, at now: MonotonicTime) -> [Event] {
        guard let packet = RTPPacket(bytes), packet.payloadType == tracks[index].payloadType else { return [] }
        let first = start ?? now
        start = first
        let arrival = (now - first).nanoseconds / 1000
        if tracks[index].source != packet.source {
            // A camera that restarts its encoder has another clock.
            if tracks[index].source != nil { tracks[index].clock.restart() }
            tracks[index].source = packet.source
        }
        let dropped = tracks[index].packets.framesTooLarge
        var events: [Event] = []
        for frame in tracks[index].packets.take(packet) {
            let time = tracks[index].clock.time(of: frame.timestamp, arrival: arrival)
            events += take(frame, at: tracks[index].clock.time(time, plus: frame.offset), of: index, now)
        }
        if tracks[index].packets.framesTooLarge > dropped {
            if tracks[index].isVideo { hasKey = false }
            events.append(.tooLarge(track: UInt8(index)))
        }
        return events
    }

    private mutating func take(
        _ frame: RTPDepacketizer.Frame, at time: Int64, of index: Int, _ now: MonotonicTime
    ) -> [Event] {
        tracks[index].note(time)
        guard let shaped = tracks[index].shaper.shape(frame.bytes, isKey: frame.isKey) else { return [] }
        var events: [Event] = []
        if !isConfigured {
            let known = tracks.compactMap(\.shaper.configuration)
            guard known.count == tracks.count else { return [] }
            isConfigured = true
            for (index, configuration) in known.enumerated()
            where announced.count != known.count || announced[index] != configuration {
                events.append(.configuration(track: UInt8(index), configuration))
            }
            announced = known
        }
        let isVideo = tracks[index].isVideo
        if let changed = shaped.configuration {
            // It holds also if its frame is not sent.
            announced[index] = changed
            events.append(.configuration(track: UInt8(index), changed))
        }
        if isVideo, frame.isKey { hasKey = true }
        guard hasKey else { return events }
        let place = place(index, at: time, now)
        var flags: MediaFlags = isVideo && frame.isKey ? [.key] : []
        if shaped.isDiscardable { flags.insert(.discardable) }
        events.append(
            .frame(
                SourceFrame(
                    track: UInt8(index), pts: place.pts, dts: place.dts, flags: flags, payload: shaped.payload,
                    configuration: nil)))
        return events
    }

    /// The position of a frame on the time line. The first frame of a connection follows the last one of the previous
    /// connection after the time that has passed since.
    private mutating func place(_ index: Int, at time: Int64, _ now: MonotonicTime) -> MediaTimeline.Place {
        if !hasFrame {
            hasFrame = true
            // The start of the connection is too early: the first key frame may come many seconds later.
            let gap = lastFrame.map { (now - $0).nanoseconds / 1000 } ?? 0
            timeline.resume(after: gap, trackCount: tracks.count)
        }
        lastFrame = now
        return timeline.place(
            track: index, pts: time, dts: tracks[index].hasReordering ? nil : time,
            duration: tracks[index].frameDuration)
    }
}
