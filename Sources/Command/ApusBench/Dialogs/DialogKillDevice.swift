import ApusClient
import ApusContract
import ApusCore
import ApusDevice
import ApusLocal
import ApusSessions
import Foundation
import Logging
import SwiftProtobuf
import Synchronization

/// A device that people talk to, with a gate that it locks, a lamp, and two apps of its account at other nodes.
///
/// Concurrency model: any thread. A `Mutex` guards what it has been asked for.
final class DialogKillDevice: Sendable {
    /// What was asked of the device.
    struct Asked: Sendable {
        /// How often it was asked to lock, and to unlock.
        var actions: [String: Int] = [:]
        /// How often each directive has come, by its id.
        var directives: [String: Int] = [:]
        var lamp = ""
        /// What has begun, whether it was answered yet or not.
        var begun = 0
        /// The versions of the events with which each timer has begun to ring.
        var rings: [UInt32: Set<UInt64>] = [:]
        /// How late the first event of each timer came, in milliseconds.
        var lateness: [UInt32: Double] = [:]
    }

    private struct Hold: Sendable {
        let gate: KillGate
        let until: Duration
    }

    private final class Shared: Sendable {
        let asked = Mutex(Asked())
        let hold = Mutex<Hold?>(nil)
    }

    let id: DeviceID
    let session: ClientSession
    /// Says the sentences.
    let app: ClientSession
    /// Watches.
    let observer: ClientSession
    private let shared: Shared
    private let tasks: [Task<Void, Never>]

    static let gateName = "garden gate"

    init(_ number: Int, _ nodes: [String], _ stage: SignInStage) async throws {
        let id = DeviceID(unchecked: "speaker-\(number)")
        let account = AccountID(unchecked: "home-\(number)")
        func signIn(_ role: Session.Role, _ access: String, _ node: Int) async throws(ApusError) -> ClientSession {
            try await stage.session(
                role, AccessID(unchecked: access), account: account, device: role == .device ? id : nil,
                first: nodes[node % nodes.count])
        }
        let session = try await signIn(.device, id.rawValue, number)
        let app = try await signIn(.app, "caller-\(number)", number + 1)
        let observer = try await signIn(.app, "observer-\(number)", number + 2)
        (self.id, self.session, self.app, self.observer) = (id, session, app, observer)
        let shared = Shared()
        self.shared = shared
        let silent = Logger(label: "bench") { _ in SwiftLogNoOpLogHandler() }
        let commands = DeviceCommands(session: session, log: silent)
        commands.onAction("lock") { json throws(ApusError) in
            await Self.take(shared) { $0.actions[json, default: 0] += 1 }
            return "0"
        }
        commands.onDirective { directive throws(ApusError) in
            await Self.take(shared) { $0.directives[directive.messageID, default: 0] += 1 }
        }
        let settings = DeviceSettings(session: session, device: id, initial: [], log: silent) { _, json in
            await Self.take(shared) { $0.lamp = json }
            return json
        }
        try await LoadSessions.repeated { () throws(ApusError) in
            try await session.reportProperty(path: "ProWritable.power.setVal", json: "0")
            _ = try await app.setVoiceHome(Self.home(id))
        }
        tasks = [
            Task { _ = try? await commands.run() }, Task { _ = try? await settings.run() },
            Task { await Self.followTimers(of: id, observer, shared) },
        ]
    }

    private static func home(_ id: DeviceID) -> ClientVoiceHome {
        func entry(_ entryID: String, _ name: String, _ kind: String, _ what: String, _ path: String)
            -> ClientVoiceDevice
        {
            .with {
                ($0.id, $0.device, $0.names, $0.kind, $0.area) = (entryID, id.rawValue, [name], kind, "hall")
                guard !what.isEmpty else { return }
                let control = ClientVoiceControl.with {
                    ($0.what, $0.path, $0.onJson, $0.offJson) = (what, path, "1", "0")
                }
                $0.controls = [control]
            }
        }
        return .with {
            $0.areas = [.with { ($0.id, $0.names) = ("hall", ["hall"]) }]
            $0.devices = [
                entry("voice", "speaker", "speaker", "", ""), entry("gate", gateName, "lock", "lock", "Action.lock"),
                entry("lamp", "hall lamp", "light", "power", "ProWritable.power"),
            ]
        }
    }

    /// Notes what the device was asked for, and answers when it may.
    private static func take(_ shared: Shared, _ note: (inout Asked) -> Void) async {
        shared.asked.withLock { asked in
            note(&asked)
            asked.begun += 1
        }
        guard let hold = shared.hold.withLock({ $0 }) else { return }
        try? await hold.gate.wait(until: hold.until)
    }

    private static func followTimers(of device: DeviceID, _ session: ClientSession, _ shared: Shared) async {
        repeat {
            do {
                for try await event in session.timerChanges(of: device) where event.message.kind == .ringing {
                    let (timer, version) = (event.message.timer, event.message.version)
                    let late = Date().timeIntervalSince1970 * 1000 - Double(timer.dueMs)
                    shared.asked.withLock { asked in
                        asked.rings[timer.id, default: []].insert(version)
                        asked.lateness[timer.id] = asked.lateness[timer.id] ?? late
                    }
                }
            } catch {
                BenchScope.say("the events of timers end: \(error)")
            }
        } while (try? await Task.sleep(for: .milliseconds(100))) != nil
    }

    /// What it is asked for from now on is answered only at a time after the kill.
    func hold(until offset: Duration, _ gate: KillGate) {
        shared.hold.withLock { $0 = Hold(gate: gate, until: offset) }
    }

    func release() { shared.hold.withLock { $0 = nil } }

    var asked: Asked { shared.asked.withLock { $0 } }

    /// Timers have small numbers, which are given again.
    func forgetTimers() {
        shared.asked.withLock { ($0.rings, $0.lateness) = ([:], [:]) }
    }

    func close() {
        for task in tasks { task.cancel() }
        for session in [session, app, observer] { session.close() }
    }

    /// What a node is to this dialog.
    func roles(of node: String, owner: String?, standby: String?, _ stage: SignInStage) async -> Set<DialogKillRole> {
        var roles: Set<DialogKillRole> = []
        if owner == node { roles.insert(.owner) }
        if standby == node { roles.insert(.standby) }
        let endpoint = try? stage.local.endpoint(of: node)
        if await session.currentEndpoint() == endpoint { roles.insert(.device) }
        if await app.currentEndpoint() == endpoint { roles.insert(.app) }
        return roles.isEmpty ? [.other] : roles
    }
}
