package import ApusContract
package import ApusCore
package import ApusDiagnosis
package import ApusMedia

/// The 13 steps of one play session, its figures and its lines (IV-G3 to IV-G7).
///
/// Steps have the times at which they happened. Their lines come in the order of their numbers: that of a step which
/// happened early waits for those before it, until the session stops or they cannot come any more. Each step has one
/// line, and the last one always follows the stop.
///
/// Pure: times are passed in. ``PlayTrace`` is the shell.
package struct PlaySteps: Sendable {
    package typealias Step = ClientPlayReport.Step

    /// A line of the log.
    package struct Line: Sendable, Hashable {
        package enum Level: Sendable, Hashable { case trace, info, warning }

        package var level: Level
        /// A constant sentence.
        package var text: String
        package var facts: [Fact]
        /// A run of lines of one kind is folded into one (IV-G1).
        package var isFolded = false
    }

    /// A fact of a line, such as `vpts` and its value.
    package struct Fact: Sendable, Hashable {
        package var key: String
        package var value: String
    }

    /// The part of the app that failed.
    package enum Part: Sendable, Hashable { case stream, decoder, renderer }

    package let session: String
    package let device: String
    package let source: UInt16
    private let began: MonotonicTime
    /// By the number of the step, from 0.
    private var times = [MonotonicTime?](repeating: nil, count: ClientPlayReport.stepCount)
    /// Steps whose lines have been made.
    private var lined: Set<Int> = []
    /// Steps that will not come.
    private var skippedSteps: Set<Int> = []
    private var report = ClientPlayReport()
    private var lastReceived: MonotonicTime?
    private var lastDecoded: MonotonicTime?
    private var lastRendered: MonotonicTime?
    private var clock = PlayClock()
    private var isSkewed = false
    private var pace = ReportPace()

    /// How long no frame may come before the stream counts as stalled (IV-G6).
    package static let tolerance = Duration.milliseconds(500)
    /// After this time with packets, their lines do not wait for decoders.
    private static let codecsTime = Duration.seconds(1)

    /// - Parameters:
    ///   - session: 32 hexadecimal digits.
    ///   - now: the time of step 1.
    package init(session: String, device: String, source: UInt16, now: MonotonicTime) {
        (self.session, self.device, self.source, began) = (session, device, source, now)
        (report.session, report.device, report.source) = (session, device, UInt32(source))
    }

    // MARK: - Steps

    /// A step happened. Only the first time counts. Returns the lines that are due.
    package mutating func reached(_ step: Step, now: MonotonicTime) -> [Line] {
        guard times[step.rawValue - 1] == nil else { return [] }
        times[step.rawValue - 1] = now
        // What comes over the stream has passed these, even if they were not noticed.
        if step == .packet { skippedSteps.insert(Step.header.rawValue) }
        if step == .stop { skippedSteps.formUnion(Step.create.rawValue..<Step.stop.rawValue) }
        return due()
    }

    /// Decoders and renderers of the SDK take part: the steps 5, 6, 8, 9, 11 and 12 are expected.
    package mutating func renders(pictures: Bool, sound: Bool) {
        (report.rendersPictures, report.rendersSound) = (pictures, sound)
    }

    private mutating func giveUp(_ steps: Set<Int>) -> [Line] {
        guard !steps.isSubset(of: skippedSteps) else { return [] }
        skippedSteps.formUnion(steps)
        return due()
    }

    private func isExpected(_ step: Step) -> Bool {
        guard !skippedSteps.contains(step.rawValue) else { return false }
        switch step {
        case .codecs, .renderers, .decoded, .rendered, .codecsClosed, .renderersStopped: return report.isRendered
        case .create, .connecting, .connected, .header, .packet, .stop, .released: return true
        }
    }

    private mutating func due() -> [Line] {
        var lines: [Line] = []
        for step in Step.allCases where !lined.contains(step.rawValue) {
            guard let time = times[step.rawValue - 1] else {
                if isExpected(step) { break }
                continue
            }
            lined.insert(step.rawValue)
            lines.append(line(of: step, time))
        }
        return lines
    }

    private func line(of step: Step, _ time: MonotonicTime) -> Line {
        Line(
            level: .info, text: step.sentence,
            facts: [Fact(key: LogKey.milliseconds, value: "\(Self.milliseconds(time - began))")])
    }

    /// The session is over: the steps 10 to 13 that have not happened do so now.
    package mutating func released(now: MonotonicTime) -> [Line] {
        var lines = reached(.stop, now: now)
        skippedSteps.formUnion([Step.codecsClosed.rawValue, Step.renderersStopped.rawValue])
        if report.isRendered {
            // They end with the renderer, which the app may keep.
            if times[Step.codecs.rawValue - 1] != nil { lines += reached(.codecsClosed, now: now) }
            if times[Step.renderers.rawValue - 1] != nil { lines += reached(.renderersStopped, now: now) }
        }
        return lines + reached(.released, now: now)
    }

    // MARK: - Facts

    package mutating func linkChanged(isConnected: Bool) { report.connected = isConnected }

    /// The header of a track has come (IV-C9).
    package mutating func configured(_ track: UInt8, _ configuration: TrackConfiguration, now: MonotonicTime) -> [Line]
    {
        clock.configured(track, configuration)
        report.codecs = clock.codecs.map { "\($0)" }
        return reached(.header, now: now)
    }

    /// A frame has come, which is no configuration.
    ///
    /// - Parameter isTracing: a line for each packet is wanted.
    package mutating func received(
        _ header: MediaHeader, byteCount: Int, isTracing: Bool, now: MonotonicTime
    ) -> [Line] {
        var lines = reached(.packet, now: now)
        if let lastReceived, now - lastReceived > Self.tolerance {
            lines.append(
                Line(
                    level: .warning, text: "Jitter stalled the stream",
                    facts: [
                        Fact(key: "apus.tolerance_ms", value: "\(Self.milliseconds(Self.tolerance))"),
                        Fact(key: "apus.delay_ms", value: "\(Self.milliseconds(now - lastReceived))"),
                    ]))
        }
        lastReceived = now
        report.received += 1
        // The stream has nothing that the renderer takes: it has no such track.
        if let first = times[Step.packet.rawValue - 1], now - first > Self.codecsTime { lines += giveUp([5, 6]) }
        report.gaps &+= clock.received(header, now: now) ? 1 : 0
        lines += skewLines()
        if isTracing {
            let isPicture = clock.isPicture(header.track)
            lines.append(
                packetLine("A packet was received", isPicture, header.ptsMicroseconds, "len", "\(byteCount)"))
        }
        return lines
    }

    /// Sound and pictures of the same moment differ by more than a second: synchronization is void (IV-G5).
    private mutating func skewLines() -> [Line] {
        guard let skew = clock.skewMicroseconds else { return [] }
        report.skewMs = Int32(clamping: skew / 1000)
        let isTooLarge = abs(skew) > 1_000_000
        defer { isSkewed = isTooLarge }
        guard isTooLarge, !isSkewed else { return [] }
        return [
            Line(
                level: .warning, text: "Sound and pictures of the same moment have different times",
                facts: [Fact(key: "apus.skew_ms", value: "\(skew / 1000)")])
        ]
    }

    private func packetLine(_ text: String, _ isPicture: Bool, _ pts: Int64, _ key: String, _ value: String) -> Line {
        let kind = isPicture ? "v" : "a"
        return Line(
            level: .trace, text: text,
            facts: [Fact(key: "\(kind)pts", value: "\(pts)"), Fact(key: "\(kind)\(key)", value: value)],
            isFolded: true)
    }

    /// The app has no decoder for a codec.
    package mutating func decoderMissing(_ codec: Codec) -> [Line] {
        report.missingDecoder = "\(codec)"
        skippedSteps.formUnion([5, 6, 8, 9])
        return [Line(level: .warning, text: "There is no decoder", facts: [Fact(key: "apus.codec", value: "\(codec)")])]
            + due()
    }

    package mutating func decoded(
        pts: Int64, isPicture: Bool, isTracing: Bool, now: MonotonicTime
    ) -> [Line] {
        var lines = reached(.decoded, now: now)
        lastDecoded = now
        report.decoded += 1
        if isTracing { lines.append(packetLine("A frame was decoded", isPicture, pts, "ret", "0")) }
        return lines
    }

    package mutating func rendered(
        pts: Int64, isPicture: Bool, isTracing: Bool, now: MonotonicTime
    ) -> [Line] {
        var lines = reached(.rendered, now: now)
        lastRendered = now
        report.rendered += 1
        let difference = clock.rendered(pts, isPicture: isPicture, now: now)
        if isTracing {
            let text = difference.map { "\(Self.milliseconds($0))" } ?? "-"
            lines.append(packetLine("A frame was rendered", isPicture, pts, "diff", text))
        }
        return lines
    }

    package mutating func failed(_ part: Part, _ error: ApusError) -> [Line] {
        switch part {
        case .stream: report.streamError = error.code.number
        case .decoder: report.decodeError = error.code.number
        case .renderer: report.renderError = error.code.number
        }
        if part != .stream { skippedSteps.formUnion([5, 6, 8, 9]) }
        return [
            Line(
                level: .warning, text: part.sentence,
                facts: [
                    Fact(key: LogKey.code, value: "\(error.code.number)"),
                    Fact(key: LogKey.error, value: error.message),
                ])
        ] + due()
    }

    package mutating func skipped(_ count: UInt64) { report.skipped &+= count }
    package mutating func dropped(_ count: UInt64) { report.dropped = count }

    // MARK: - Reports

    /// The session at this time.
    package func report(now: MonotonicTime) -> ClientPlayReport {
        var report = report
        report.stepsMs = times.map { time in
            time.map { UInt32(clamping: Self.milliseconds($0 - began)) &+ 1 } ?? 0
        }
        report.ageMs = UInt64(Self.milliseconds(now - began))
        func age(_ time: MonotonicTime?) -> UInt64 { time.map { UInt64(Self.milliseconds(now - $0)) + 1 } ?? 0 }
        (report.receivedMs, report.decodedMs, report.renderedMs) = (
            age(lastReceived), age(lastDecoded), age(lastRendered)
        )
        let delays = clock.renderDelays
        (report.renderMedianMs, report.renderSpreadMs) = (delays.median, delays.spread)
        return report
    }

    /// The report that the cluster has to receive now; nil: nothing has changed that matters, or the last one is too
    /// recent. Call it again within ``ReportPace/interval``.
    package mutating func nextReport(now: MonotonicTime) -> ClientPlayReport? {
        var report = report(now: now)
        guard let number = pace.next(report, now: now) else { return nil }
        report.number = number
        return report
    }

    private static func milliseconds(_ time: Duration) -> Int64 { max(0, Int64(time.milliseconds)) }
}

extension PlaySteps.Part {
    fileprivate var sentence: String {
        switch self {
        case .stream: "The cluster has ended the stream"
        case .decoder: "The decoder has failed"
        case .renderer: "The renderer has failed"
        }
    }
}

extension ClientPlayReport.Step {
    /// The line of the step: its number, and what has happened (IV-G3).
    package var sentence: String {
        switch self {
        case .create: "① The play session is created"
        case .connecting: "② The play session connects"
        case .connected: "③ The play session is connected"
        case .header: "④ The header has come"
        case .codecs: "⑤ The codecs are registered"
        case .renderers: "⑥ The renderers are started"
        case .packet: "⑦ The first packet has come"
        case .decoded: "⑧ The first frame is decoded"
        case .rendered: "⑨ The first frame is rendered"
        case .stop: "⑩ The play session stops"
        case .codecsClosed: "⑪ The codecs are closed"
        case .renderersStopped: "⑫ The renderers are stopped"
        case .released: "⑬ The player is released"
        }
    }
}
