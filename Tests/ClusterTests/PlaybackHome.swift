import ApusClient
import ApusContract
import ApusCore
import ApusDevice
import ApusMedia
import ApusTestKit
import Foundation
import NIOCore
import Synchronization
import Testing

/// A camera at node 1 that has recorded, and an app of its account at node 2.
struct PlaybackHome {
    static let cam = DeviceID(unchecked: "cam")

    let folder = Folder()
    let records: RecordingFolder
    /// The frames that were recorded.
    let sent: [MediaFrame]
    let camera: PlaybackCamera
    let app: ClientSession
    let recording: Recording

    /// - Parameter ports: where the clients connect; empty for the listeners of the nodes.
    init(
        _ cluster: Cluster, _ device: DeviceID = PlaybackHome.cam, account: String = "local", seconds: UInt64 = 12,
        limits: PlaybackTable.Limits = PlaybackTable.Limits(), ports: [Int] = []
    ) async throws {
        (records, sent) = try await Self.recorded(folder, seconds: seconds)
        camera = try PlaybackCamera(cluster, records, device, account: account, limits: limits, ports: ports)
        let token = try cluster.token("--role", "app", "--account", account)
        app = try cluster.session(node: 2, token: token, ports: ports.reversed())
        let found = try await eventually { [app] () throws(ApusError) in
            try await app.recordings(of: device, from: Date() - 3600, to: Date())
        }
        recording = try #require(found.first)
        #expect(found.count == 1)
    }

    func close() {
        camera.close()
        app.close()
    }

    /// Twelve seconds, ten pictures a second and a key frame each second, that ended a minute before now.
    private static func recorded(_ folder: Folder, seconds: UInt64 = 12) async throws -> (RecordingFolder, [MediaFrame])
    {
        var pattern = try TestPattern(width: 64, height: 64, frameRate: 10)
        pattern.keyIntervalSeconds = 1
        let frames = try await TestPatternSource(pattern, frameCountMax: seconds * 10, isPaced: false)
            .allFrames(byteCountMax: 64 << 20)
        var limits = RecordingFolder.Limits()
        limits.fileDuration = .seconds(4)
        let records = try RecordingFolder(
            path: folder.file("records"), limits: limits, log: ClientSession.loggingDisabled)
        let writer = try RecordingWriter(records)
        let start = Int64(Date().timeIntervalSince1970 * 1000) - 60_000 - Int64(seconds) * 1000
        for var frame in frames {
            frame.header.captureMilliseconds = UInt32(
                truncatingIfNeeded: start + frame.header.ptsMicroseconds / 1000)
            writer.write(frame)
        }
        await writer.finish()
        return (records, frames.filter { !$0.header.flags.contains(.configuration) })
    }
}

/// A camera whose recordings can be played.
final class PlaybackCamera: Sendable {
    let session: ClientSession
    let playbacks: DevicePlaybacks
    private let work: Task<Void, Never>

    init(
        _ cluster: Cluster, _ records: RecordingFolder, _ device: DeviceID = PlaybackHome.cam,
        account: String = "local", limits: PlaybackTable.Limits = PlaybackTable.Limits(), node: Int = 1,
        ports: [Int] = []
    ) throws {
        let token = try cluster.token("--role", "device", "--device", device.rawValue, "--account", account)
        session = try cluster.session(node: node, token: token, role: .device, ports: ports)
        let log = ClientSession.loggingDisabled
        let commands = DeviceCommands(session: session, log: log)
        playbacks = DevicePlaybacks(
            session: session, commands: commands, store: records, limits: limits, log: log)
        work = Task { [playbacks] in
            await withDiscardingTaskGroup { group in
                group.addTask { _ = try? await commands.run() }
                group.addTask { await playbacks.run() }
            }
        }
    }

    func close() {
        work.cancel()
        session.close()
    }
}

/// What a player received.
final class PlaybackScreen: Sendable {
    struct State: Sendable {
        var frames: [MediaFrame] = []
        var finished = 0
        var ended: ApusError?
        var lost = 0
        var last: FramePosition?
    }
    let state = Mutex(State())

    func player(_ session: ClientSession, of device: DeviceID = PlaybackHome.cam) -> PlaybackPlayer {
        PlaybackPlayer(
            session: session, device: device,
            onFrame: { [self] frame in
                state.withLock { state in
                    if frame.header.flags.contains(.repeated) { return }
                    if let last = state.last, last.epoch == frame.header.position.epoch,
                        frame.header.position.sequence != last.sequence + 1
                    {
                        state.lost += 1
                    }
                    state.last = frame.header.position
                    if !frame.header.flags.contains(.configuration) { state.frames.append(frame) }
                }
            },
            onEvent: { [self] event in
                state.withLock { state in
                    switch event {
                    case .finished: state.finished += 1
                    case .ended(let error): state.ended = error
                    case .live, .waiting, .skipped, .began: break
                    }
                }
            })
    }

    var pictures: [MediaFrame] { state.withLock { $0.frames.filter { $0.header.track == 0 } } }
    var count: Int { state.withLock { $0.frames.count } }

    func forget() { state.withLock { $0.frames = [] } }
}
