import ApusClient
import ApusCore
import ApusMedia
import Logging
import NIOCore

/// One connection to a camera, from DESCRIBE to its end.
///
/// Concurrency model: used on one thread, which it blocks.
final class CameraStream {
    private let address: CameraAddress
    private let log: Logger
    private let isStopped: () -> Bool
    private var machine: RTSPClientStateMachine
    private var decoder = RTSPMessageDecoder()
    private let opened = MonotonicTime.now()
    /// When the camera last sent anything, and when a picture or sound was complete.
    private var lastBytes: MonotonicTime
    private var lastMedia: MonotonicTime
    private var lastKeepalive: MonotonicTime
    private var playing: MonotonicTime?
    /// When a picture that is too large was last reported.
    private var reported: MonotonicTime?

    /// The shortest time between two reports of pictures that are too large.
    private static let reportInterval = Duration.seconds(60)
    /// How long a camera may not take a request.
    private static let sendTimeout = Duration.seconds(5)

    init(_ address: CameraAddress, random: UInt64, log: Logger, isStopped: @escaping () -> Bool) {
        (self.address, self.log, self.isStopped) = (address, log, isStopped)
        machine = RTSPClientStateMachine(address, clientNonce: String(random, radix: 16))
        (lastBytes, lastMedia, lastKeepalive) = (opened, opened, opened)
    }

    /// Plays until the camera or the source ends it.
    func play(
        _ line: inout CameraLine, _ deliver: (SourceEvent) -> Void
    ) throws(RTSPClientStateMachine.Failure) {
        let connection = try failing { () throws(ApusError) in
            try CameraConnection(to: address, until: opened + RTSPSource.openTimeout, isStopped: isStopped)
        }
        defer { end(connection) }
        try perform([machine.connected()], connection, &line, deliver)
        try receive(connection, &line, deliver)
    }

    private func receive(
        _ connection: CameraConnection, _ line: inout CameraLine, _ deliver: (SourceEvent) -> Void
    ) throws(RTSPClientStateMachine.Failure) {
        while !isStopped() {
            let bytes = try failing { () throws(ApusError) in
                try connection.receive(until: .now() + .milliseconds(500))
            }
            guard let bytes else { return }
            let now = MonotonicTime.now()
            if bytes.readableBytes > 0 {
                lastBytes = now
                decoder.append(bytes)
                while let message = try failing({ () throws(ApusError) in try decoder.next() }) {
                    try perform(machine.received(message), connection, &line, deliver)
                    if isStopped() { return }
                }
            }
            try checkTimes(now, isConfigured: line.isConfigured)
            if let keepalive = keepalive(at: now) { try perform([keepalive], connection, &line, deliver) }
        }
    }

    private func perform(
        _ actions: [RTSPClientStateMachine.Action], _ connection: CameraConnection, _ line: inout CameraLine,
        _ deliver: (SourceEvent) -> Void
    ) throws(RTSPClientStateMachine.Failure) {
        for action in actions {
            let now = MonotonicTime.now()
            switch action {
            case .send(let text):
                try failing { () throws(ApusError) in try connection.send(text, until: now + Self.sendTimeout) }
            case .choose(let tracks, let omissions):
                for omission in omissions {
                    log.warning(
                        "A track is ignored",
                        metadata: [LogKey.address: "\(address.shown)", LogKey.reason: "\(omission)"])
                }
                line.begin(tracks: tracks, at: now)
            case .playing: (playing, lastMedia) = (now, now)
            case .packet(let track, let bytes):
                let events = line.take(bytes, of: track, at: now)
                // Packets without an end of a picture are none.
                if !events.isEmpty { lastMedia = now }
                for event in events { pass(event, now, deliver) }
            case .report(let track, let bytes): line.take(report: bytes, of: track)
            }
        }
    }

    private func pass(_ event: CameraLine.Event, _ now: MonotonicTime, _ deliver: (SourceEvent) -> Void) {
        switch event {
        case .configuration(let track, let configuration): deliver(.configuration(track: track, configuration))
        case .frame(let frame): frame.deliver(to: deliver)
        case .tooLarge(let track):
            guard reported.map({ now - $0 >= Self.reportInterval }) ?? true else { return }
            reported = now
            let error = ApusError(
                .frameTooLarge,
                "a picture of the camera has more than \(MediaFrame.joinedByteCountMax) bytes and is left out; "
                    + "lower the bit rate or the size of its pictures")
            let facts = Logger.facts(of: error).merging(
                [LogKey.address: "\(address.shown)", "apus.track": "\(track)"]) { $1 }
            log.warning("A picture is too large", metadata: facts)
        }
    }

    /// - Throws: if the camera does not do what it should in time.
    private func checkTimes(_ now: MonotonicTime, isConfigured: Bool) throws(RTSPClientStateMachine.Failure) {
        let name = "the camera at \(address.shown)"
        guard let playing else {
            guard now - opened < RTSPSource.openTimeout else {
                throw .failed(ApusError(.mediaUnreadable, "\(name) does not answer in time"))
            }
            return
        }
        if now - lastBytes >= RTSPSource.readTimeout || now - lastMedia >= RTSPSource.mediaTimeout {
            throw .failed(ApusError(.mediaUnreadable, "\(name) sends nothing any more"))
        }
        if !isConfigured, now - playing >= RTSPSource.configurationTimeout {
            throw .failed(
                ApusError(.mediaUnreadable, "\(name) does not send a key frame with the configuration of its decoder"))
        }
    }

    /// Often enough for the session, and sooner where the camera is silent.
    private func keepalive(at now: MonotonicTime) -> RTSPClientStateMachine.Action? {
        let isSilent = now - lastBytes >= RTSPSource.readTimeout / 2
        let interval = isSilent ? RTSPSource.readTimeout / 2 : machine.timeout / 3
        guard machine.isPlaying, now - lastKeepalive >= interval else { return nil }
        lastKeepalive = now
        return machine.keepalive()
    }

    /// Asks the camera to end the stream; some have few places for viewers. It does not wait for the answer.
    private func end(_ connection: CameraConnection) {
        guard case .send(let text) = machine.teardown() else { return }
        try? connection.send(text, until: .now())
    }

    private func failing<Result>(
        _ body: () throws(ApusError) -> Result
    ) throws(RTSPClientStateMachine.Failure) -> Result {
        do { return try body() } catch { throw .failed(error) }
    }
}
