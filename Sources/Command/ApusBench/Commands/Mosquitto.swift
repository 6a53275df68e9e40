import ApusCore
import ApusLocal
import Foundation

/// Debian's mosquitto with TLS and persistent sessions, and the load of Benchmarks/commands/mqtt_load.c.
struct Mosquitto {
    private let process: Process
    private let port: Int
    private let authority: String
    private let load: String

    init(_ local: LocalCluster, directory: String, port: Int, scope: BenchScope) throws {
        guard let load = ProcessInfo.processInfo.environment["APUS_MQTT_LOAD"] else {
            throw ApusError(.configurationInvalid, "the load for mosquitto is missing: use `scripts/bench commands`")
        }
        (self.port, self.load, authority) = (port, load, local.authorityFile)
        let folder = "\(directory)/mosquitto"
        try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
        let pki = local.directory.pki
        try """
        per_listener_settings false
        listener \(port) 127.0.0.1
        cafile \(local.authorityFile)
        certfile \(pki.path)/clients.pem
        keyfile \(pki.path)/clients.key
        tls_version tlsv1.3
        allow_anonymous true
        persistence true
        persistence_location \(folder)/
        log_type error
        user root
        set_tcp_nodelay true
        """.write(toFile: "\(folder)/mosquitto.conf", atomically: true, encoding: .utf8)
        process = Process()
        process.executableURL = URL(fileURLWithPath: BenchProcess.find("mosquitto") ?? "/usr/sbin/mosquitto")
        process.arguments = ["-c", "\(folder)/mosquitto.conf"]
        process.standardOutput = FileHandle.nullDevice
        try process.run()
        let pid = process.processIdentifier
        // It inherits that SIGTERM is blocked.
        scope.onEnd { kill(pid, SIGKILL) }
        Thread.sleep(forTimeInterval: 1)
        guard process.isRunning else { throw ApusError(.internalFailure, "mosquitto did not start") }
    }

    func run(
        _ devices: Int, _ apps: Int, rate: Double, concurrency: Int, seconds: Double
    ) throws -> BenchCommandsCommand.Part {
        let before = try busySeconds()
        let child = try BenchProcess(
            load,
            ["localhost", "\(port)", authority, "\(devices)", "\(apps)", "\(rate)", "\(concurrency)", "\(seconds)"])
        let line = child.line() ?? ""
        child.stop()
        let numbers = line.split(separator: " ").compactMap { Double($0) }
        guard numbers.count == 6 else { throw ApusError(.internalFailure, "the load of mosquitto printed: \(line)") }
        return BenchCommandsCommand.Part(
            rate: numbers[0] / numbers[2], p50: numbers[3] / 1000, p99: numbers[4] / 1000, failed: Int(numbers[1]),
            cpu: (try busySeconds() - before) * 1e6 / max(1, numbers[0]))
    }

    /// The CPU time of the broker, in seconds (proc(5), fields 14 and 15).
    private func busySeconds() throws(ApusError) -> Double {
        try BenchProcess.busySeconds(of: process.processIdentifier)
    }
}
