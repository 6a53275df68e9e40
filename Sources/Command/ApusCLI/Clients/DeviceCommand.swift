import ApusClient
import ApusContract
import ApusCore
import ApusDevice
import ApusSessions
import ArgumentParser
import Foundation
import Logging
import Synchronization

/// `apus device`: runs a software camera.
struct DeviceCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "device", abstract: "Run as a camera: publish a clip, an RTSP stream or a test pattern.")

    @Option(help: "Set the device's id.") var id: String
    @OptionGroup var media: SourceOptions
    @Option(help: "Set the source's number on a device with several cameras.") var source: UInt16 = 0
    @Option(help: "Write one JSON line for every frame to this file.") var log: String?
    @Option(help: "Have this setting, NAME=JSON, such as volume=3. Apps can change it. Repeatable.")
    var setting: [String] = []
    @Option(help: "Be a device of this product: its schema says which values the model may have, and it has firmware.")
    var product: String?
    @Option(help: "Answer the action NAME with JSON: NAME=JSON, such as unlock='{\"open\":true}'. Repeatable.")
    var action: [String] = []
    @Flag(help: "Answer raw data with the same data.") var echo = false
    @Flag(help: "Take the directives of dialogs, such as Calls.Start, and log them.") var directives = false
    @Option(help: "Note the commands in this file, so that each is carried out once, also after a restart.")
    var journal: String?
    @Option(help: "Let apps in this network change settings without the cluster, at this port. 0: any port.")
    var localPort: UInt16?
    @Option(help: "Listen for them at this address.") var localHost = "0.0.0.0"
    @Option(help: "Keep the secret of their access in this file, so that it survives a restart.")
    var localSecret: String?
    @Option(help: "Record the video into files in this folder, and let apps play them (apus recordings).")
    var recordings: String?
    @Option(help: "Keep at most this many MiB of recordings; the oldest are removed first.")
    var recordingsSize: Int64 = 4096
    @OptionGroup var firmware: FirmwareOptions
    @Option(help: "Stop after this number of seconds.") var seconds: Double?
    @OptionGroup var connection: ConnectOptions

    func validate() throws {
        guard media.count == 1 else {
            throw ValidationError("Use exactly one of --file, --rtsp, --test-pattern, and a camera or sound.")
        }
        _ = try DeviceID.argument(id, "--id")
        if let product { _ = try ProductID.argument(product, "--product") }
        guard firmware.firmwareKey == nil || product != nil else {
            throw ValidationError("--firmware-key needs --product.")
        }
        guard (setting + action).allSatisfy({ $0.contains("=") }) else {
            throw ValidationError("--setting and --action must be NAME=JSON.")
        }
        guard (1...1 << 30).contains(recordingsSize) else {
            throw ValidationError("--recordings-size must be 1 to 1073741824.")
        }
        guard localPort == nil || !setting.isEmpty else { throw ValidationError("--local-port needs --setting.") }
    }

    func run() async throws {
        let device = try DeviceID.argument(id, "--id")
        let access = AccessID(unchecked: id)
        let log = connection.log
        guard let media = try media.source(log: log) else { return }
        let configuration = try await connection.client(role: .device, access: access, device: device)
        let frames = try self.log.map { path throws(ApusError) in try FrameLog(path: path) }
        let link = try CommandSession(configuration, log: log)
        let (session, ending) = (link.session, link.ending)
        session.start()
        let folder = try recordingFolder(log: log)
        let agent = DeviceAgent(
            session: session, source: media, channel: source, frameLog: frames,
            recording: try folder.map { folder throws(ApusError) in try RecordingWriter(folder, source: source) },
            log: log)
        let initial = setting.map(Self.pair)
        let values = CurrentValues(initial, product: product)
        // The values need nothing to be done: this device has them once it knows them.
        let settings = DeviceSettings(
            session: session, device: device, product: product, initial: initial, log: log
        ) { name, json in
            log.notice("Setting", metadata: ["apus.setting": "\(name)", "apus.value": "\(json)"])
            values.set("ProWritable.\(name)", json)
            return json
        }
        let commands = try makeCommands(session, log: log)
        commands.onRead { path throws(ApusError) in try values.value(path) }
        let playbacks = folder.map { folder in
            DevicePlaybacks(session: session, commands: commands, store: folder, log: log)
        }
        let local = try localControl(session, device, commands, settings, log: log)
        let updater = try firmware.updater(of: product, session, log: log)
        let result = await ending.race(seconds: seconds) { () throws(ApusError) in
            async let _ = Self.keep(initial.isEmpty && product == nil ? nil : settings, ending)
            async let _ = Self.keep(commands, ending)
            async let _ = playbacks?.run()
            async let _ = Self.keep(local, ending)
            async let _ = Self.keep(updater, ending)
            try await agent.run()
        }
        try await link.close()
        frames?.close()
        try result.get()
    }

    private static func keep(_ settings: DeviceSettings?, _ ending: Ending) async {
        do throws(ApusError) {
            try await settings?.run()
        } catch {
            if error.code != .cancelled { ending.end(error) }
        }
    }

    private static func keep(_ commands: DeviceCommands, _ ending: Ending) async {
        do throws(ApusError) {
            try await commands.run()
        } catch {
            if error.code != .cancelled { ending.end(error) }
        }
    }

    private static func keep(_ local: LocalControl?, _ ending: Ending) async {
        do throws(ApusError) {
            try await local?.run()
        } catch {
            if error.code != .cancelled { ending.end(error) }
        }
    }

    private static func keep(_ updater: FirmwareUpdater?, _ ending: Ending) async {
        do throws(ApusError) {
            try await updater?.run()
        } catch {
            if error.code != .cancelled { ending.end(error) }
        }
    }

    private func recordingFolder(log: Logger) throws(ApusError) -> RecordingFolder? {
        guard let recordings else { return nil }
        var limits = RecordingFolder.Limits()
        limits.byteCountMax = recordingsSize << 20
        return try RecordingFolder(path: recordings, limits: limits, log: log)
    }

    private func localControl(
        _ session: ClientSession, _ device: DeviceID, _ commands: DeviceCommands, _ settings: DeviceSettings,
        log: Logger
    ) throws(ApusError) -> LocalControl? {
        guard let localPort else { return nil }
        var configuration = LocalControl.Configuration()
        configuration.bind = HostPort(host: localHost, port: Int(localPort))
        configuration.secretFile = localSecret
        return try LocalControl(
            session: session, device: device, commands: commands, settings: settings, configuration: configuration,
            log: log)
    }

    private static func pair(_ text: String) -> (name: String, json: String) {
        let parts = text.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
        return (name: String(parts[0]), json: String(parts[1]))
    }

    /// The commands that this camera takes: it prints each and gives the answer that it was started with.
    private func makeCommands(_ session: ClientSession, log: Logger) throws(ApusError) -> DeviceCommands {
        let journal = try self.journal.map { path throws(ApusError) in try CommandJournal(path: path) }
        if let journal, journal.damagedCount > 0 {
            log.warning("The journal has damaged lines", metadata: ["apus.lines": "\(journal.damagedCount)"])
        }
        let commands = DeviceCommands(session: session, journal: journal, log: log)
        for (name, json) in action.map(Self.pair) {
            commands.onAction(name) { value throws(ApusError) in
                log.notice("Action", metadata: ["apus.action": "\(name)", "apus.value": "\(value)"])
                return json
            }
        }
        if directives {
            commands.onDirective { directive throws(ApusError) in
                let facts: Logger.Metadata = [
                    "apus.directive": "\(directive.namespace).\(directive.name)", "apus.value": "\(directive.payload)",
                ]
                log.notice("Directive", metadata: facts)
            }
        }
        if echo {
            commands.onData { data throws(ApusError) in
                log.notice("Data", metadata: ["apus.bytes": "\(data.count)"])
                return data
            }
        }
        return commands
    }
}

/// The values that this camera has, by the paths of their leaves.
private final class CurrentValues: Sendable {
    private let values: Mutex<[String: String]>

    init(_ settings: [(name: String, json: String)], product: String?) {
        var values = Dictionary(settings.map { ("ProWritable.\($0.name)", $0.json) }) { $1 }
        values["ProReadonly._product"] = product.map { "\"\($0)\"" }
        self.values = Mutex(values)
    }

    func set(_ path: String, _ json: String) { values.withLock { $0[path] = json } }

    /// - Throws: 21003 if it has no such value.
    func value(_ path: String) throws(ApusError) -> String {
        guard let json = values.withLock({ $0[path] }) else {
            throw ApusError(.propertyUnknown, "this camera has nothing at \(path)")
        }
        return json
    }
}
