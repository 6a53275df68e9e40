import ApusClient
import ApusCore
import ApusMedia
import ApusSessions
import ArgumentParser
import Foundation
import Logging
import NIOCore
import NIOPosix

/// `apus watch`: a viewer without a screen.
struct WatchCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "watch", abstract: "Watch a device: record it, take a picture, or only count frames.")

    @Argument(help: "The device's id.") var device: String
    @Option(help: "The source's number on a device with several cameras.") var source: UInt16 = 0
    @Option(help: "Record what is seen into this MP4 file, without encoding it again.") var record: String?
    @Option(help: "Write the picture at the end to this PNG file.") var snapshot: String?
    @Option(help: "Stop after so many seconds.") var seconds: Double?
    @Option(help: "Write one JSON line for every frame to this file.") var log: String?
    @Option(help: "The access id that this viewer is; a new one each time when not given.") var access: String?
    @OptionGroup var connection: ConnectOptions

    func validate() throws {
        _ = try identifiers()
    }

    private func identifiers() throws -> (device: DeviceID, access: AccessID) {
        let access = access ?? "watch-\(String(UInt64.random(in: 0...(.max)), radix: 36))"
        return (try .argument(device, "the device"), try .argument(access, "--access"))
    }

    func run() async throws {
        try await CommandFailure.reported {
            let (device, access) = try identifiers()
            let log = connection.log
            let configuration = try await connection.client(role: .app, access: access, device: nil)
            let frames = try self.log.map { path throws(ApusError) in try FrameLog(path: path) }
            let recorder = try record.map { path throws(ApusError) in try MP4Recorder(path: path) }
            let picture = snapshot.map { _ in Snapshot() }
            let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
            let ending = Ending()
            let session = try ClientSession(configuration: configuration, eventLoop: group.next(), log: log) {
                state, error in
                LinkReport.say(state, error, to: log)
                if state == .tokenFailed || state == .kicked { ending.end(error ?? ApusError(.tokenInvalid)) }
            }
            let viewer = Viewer(frames: frames, recorder: recorder, picture: picture, ending: ending)
            let player = Player(
                session: session, device: device, source: source, onFrame: { viewer.received($0) },
                onEvent: { event in
                    switch event {
                    case .live: log.info("Frames flow.")
                    case .waiting: log.notice("No frames at the moment.")
                    case .skipped(let count):
                        log.warning("Frames were left out: too slow.", metadata: [LogKey.count: "\(count)"])
                    case .ended(let error): ending.end(error)
                    }
                })
            session.start()
            player.start()
            let result = await ending.race(seconds: seconds) { () throws(ApusError) in
                while !Task.isCancelled { try? await Task.sleep(for: .seconds(3600)) }
            }
            session.close()
            // The loop is empty after this: no frame comes any more.
            try await group.shutdownGracefully()
            frames?.close()
            let recording = Result { () throws(ApusError) in _ = try recorder?.finish() }
            // What ended the verb comes first: nothing to record, or to show, follows from it.
            try result.get()
            try recording.get()
            if let snapshot { try picture?.save(to: snapshot) }
            viewer.report(to: log)
        }
    }
}

/// Takes a viewer's frames to the log, the recording and the picture; confined to the session's loop.
final class Viewer: @unchecked Sendable {  // SAFETY: one loop calls it; `report` comes after its end.
    private let frames: FrameLog?
    private let recorder: MP4Recorder?
    private let picture: Snapshot?
    private let ending: Ending
    private var count = 0
    private var byteCount = 0
    private var gapLongest = Duration.zero
    private var lastArrival: MonotonicTime?

    init(frames: FrameLog?, recorder: MP4Recorder?, picture: Snapshot?, ending: Ending) {
        self.frames = frames
        self.recorder = recorder
        self.picture = picture
        self.ending = ending
    }

    func received(_ frame: MediaFrame) {
        recorder?.write(frame)
        picture?.write(frame)
        if let failure = recorder?.failure ?? frames?.failure { ending.end(failure) }
        guard !frame.header.flags.contains(.repeated) else { return }
        frames?.append(frame)
        let now = MonotonicTime.now()
        if let lastArrival { gapLongest = max(gapLongest, now - lastArrival) }
        lastArrival = now
        count += 1
        byteCount += frame.payload.readableBytes
    }

    func report(to log: Logger) {
        log.notice(
            "Watched.",
            metadata: [
                "apus.frames": "\(count)", "apus.bytes": "\(byteCount)",
                "apus.gap_longest_ms": "\(Int(gapLongest.milliseconds))",
            ])
    }
}
