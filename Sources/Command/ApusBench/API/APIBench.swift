import ApusClient
import ApusContract
import ApusCore
import ApusLocal
import ArgumentParser
import Foundation
import NIOCore
import NIOPosix
import Synchronization

/// `apus-bench api`: requests over the three protocols at one node, about devices whose owner is another node, beside a
/// bare Hummingbird route and nginx in the same run; then events to many sessions of three nodes.
struct BenchAPICommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "api",
        abstract: "Send requests over the native protocol, WebSocket and REST, and events to many sessions.")

    @Option(help: "Clients that ask, each one request after the other.") var clients = 64
    @Option(help: "How long a round of one protocol lasts, in seconds.") var seconds = 3
    @Option(help: "Rounds; medians are reported.") var rounds = 5
    @Option(help: "Sessions that receive the events; 0: no events are sent.") var sessions = 10_000
    @Option(help: "Events.") var events = 30
    @Option(help: "First port.") var basePort = 28_400
    @Flag(help: "Print one JSON object as the last line.") var json = false

    /// One protocol's rounds.
    struct Row {
        var name: String
        var rates: [Double] = []
        var p50: [Double] = []
        var p99: [Double] = []
        var failed = 0

        mutating func add(_ round: Round) {
            rates.append(round.rate)
            p50.append(round.p50)
            p99.append(round.p99)
            failed += round.failed
        }

        func median(_ values: [Double]) -> Double { FailoverResult.quantile(values, 0.5) ?? 0 }
    }

    /// Requests a second, and microseconds.
    struct Round {
        var rate: Double
        var p50: Double
        var p99: Double
        var failed: Int

        init(times: [Double], failed: Int, seconds: Double) {
            rate = Double(times.count) / seconds
            p50 = FailoverResult.quantile(times, 0.5) ?? 0
            p99 = FailoverResult.quantile(times, 0.99) ?? 0
            self.failed = failed
        }

        init(wrk line: String) throws {
            let numbers = line.split(separator: " ").compactMap { Double($0) }
            guard numbers.count == 5 else { throw ApusError(.internalFailure, "wrk said \(line)") }
            rate = numbers[0] / (numbers[1] / 1_000_000)
            (p50, p99, failed) = (numbers[2], numbers[3], Int(numbers[4]))
        }
    }

    func run() async throws {
        let directory = "\(NSTemporaryDirectory())/apus-api-\(getpid())"
        let stage = try await APIStage(
            executable: try BenchPrograms.doors(), directory: directory, basePort: basePort, clients: clients)
        defer { stage.down() }
        let floors = try APIFloors(directory: directory, ports: (basePort + 90, basePort + 91))
        defer { floors.end() }
        var rows = ["native", "websocket", "rest", "hummingbird", "nginx"].map { Row(name: $0) }
        let native = try await NativeLoad(stage)
        let webSockets = try await WebSocketLoad(stage)
        let requests = try floors.requests(of: stage.clients)
        for round in 0..<rounds {
            // In turn, and every second time backwards: what the machine does meanwhile falls on all.
            for index in round % 2 == 0 ? Array(rows.indices) : rows.indices.reversed() {
                switch rows[index].name {
                case "native": rows[index].add(try await native.run(for: seconds))
                case "websocket": rows[index].add(try await webSockets.run(for: seconds))
                case "rest":
                    rows[index].add(
                        try floors.wrk("http://\(try stage.http(0))", requests, clients: clients, seconds: seconds))
                case "hummingbird":
                    rows[index].add(
                        try floors.wrk(floors.hummingbird, requests, clients: clients, seconds: seconds))
                default: rows[index].add(try floors.wrk(floors.nginx, requests, clients: clients, seconds: seconds))
                }
            }
            say("round \(round + 1)/\(rounds)")
        }
        native.close()
        var values: [String: Double] = [:]
        print("protocol     requests/s  p50 µs  p99 µs  failed")
        for row in rows {
            let (rate, p50, p99) = (row.median(row.rates), row.median(row.p50), row.median(row.p99))
            print(String(format: "%-12@ %10.0f %7.0f %7.0f %7d", row.name as NSString, rate, p50, p99, row.failed))
            values["\(row.name)_per_s"] = rate
            values["\(row.name)_p99_us"] = p99
        }
        values["rest_of_hummingbird"] = (values["rest_per_s"] ?? 0) / max(1, values["hummingbird_per_s"] ?? 1)
        print(String(format: "REST has %.2f of bare Hummingbird (goal 0.6)", values["rest_of_hummingbird"] ?? 0))
        if sessions > 0 {
            let push = try await PushBench(stage, sessions: sessions, events: events).run()
            print(push.line)
            values.merge(push.values) { $1 }
        }
        if json { print(String(decoding: try JSONSerialization.data(withJSONObject: values), as: UTF8.self)) }
        if rows.contains(where: { $0.failed > 0 }) { throw ExitCode.failure }
    }

    private func say(_ line: String) { FileHandle.standardError.write(Data("\(line)\n".utf8)) }
}

/// A bare Hummingbird route, nginx with a static file, and wrk, which asks all of them the same way.
final class APIFloors {
    let hummingbird: String
    let nginx: String
    private let directory: String
    private let children: [Process]

    init(directory: String, ports: (hummingbird: Int, nginx: Int)) throws {
        self.directory = directory
        hummingbird = "http://127.0.0.1:\(ports.hummingbird)"
        nginx = "http://127.0.0.1:\(ports.nginx)"
        let files = "\(directory)/nginx/v1/devices"
        try FileManager.default.createDirectory(atPath: files, withIntermediateDirectories: true)
        try #"{"device":"bench-0","online":1,"time":"1795456536"}"#
            .write(toFile: "\(files)/presence", atomically: true, encoding: .utf8)
        try """
        daemon off; worker_processes 2; pid \(directory)/nginx.pid; error_log /dev/null;
        events {}
        http {
          access_log off; keepalive_requests 1000000000; client_body_temp_path \(directory)/body;
          proxy_temp_path \(directory)/proxy; fastcgi_temp_path \(directory)/fastcgi;
          uwsgi_temp_path \(directory)/uwsgi; scgi_temp_path \(directory)/scgi;
          server {
            listen 127.0.0.1:\(ports.nginx); root \(directory)/nginx; default_type application/json;
            location / { rewrite ^/v1/devices/.* /v1/devices/presence break; }
          }
        }
        """.write(toFile: "\(directory)/nginx.conf", atomically: true, encoding: .utf8)
        children = [
            try Self.start(BenchPrograms.own, ["bare-http", "--port", "\(ports.hummingbird)"]),
            try Self.start(BenchProcess.find("nginx") ?? "/usr/sbin/nginx", ["-c", "\(directory)/nginx.conf"]),
        ]
        Thread.sleep(forTimeInterval: 1)
    }

    private static func start(_ executable: String, _ arguments: [String]) throws -> Process {
        let process = Process()
        process.executableURL = URL(fileURLWithPath: executable)
        process.arguments = arguments
        process.standardError = FileHandle.nullDevice
        try process.run()
        return process
    }

    func end() {
        for child in children { child.terminate() }
        for child in children { child.waitUntilExit() }
    }

    /// A file with a request for each client.
    func requests(of clients: [APIStage.Client]) throws -> String {
        let path = "\(directory)/requests"
        let lines = clients.map { "/v1/devices/\($0.device.rawValue)/presence \($0.token)" }
        try lines.joined(separator: "\n").write(toFile: path, atomically: true, encoding: .utf8)
        return path
    }

    func wrk(_ url: String, _ requests: String, clients: Int, seconds: Int) throws -> BenchAPICommand.Round {
        guard let script = ProcessInfo.processInfo.environment["APUS_WRK_SCRIPT"],
            let wrk = BenchProcess.find("wrk")
        else { throw ApusError(.configurationInvalid, "wrk is missing: use `scripts/bench api`") }
        let process = Process()
        process.executableURL = URL(fileURLWithPath: wrk)
        process.arguments = ["-t", "2", "-c", "\(clients)", "-d", "\(seconds)", "-s", script, url]
        process.environment = ProcessInfo.processInfo.environment.merging(["REQUESTS": requests]) { $1 }
        let output = Pipe()
        process.standardOutput = output
        try process.run()
        let text = String(decoding: try output.fileHandleForReading.readToEnd() ?? Data(), as: UTF8.self)
        process.waitUntilExit()
        return try BenchAPICommand.Round(wrk: String(text.split(separator: "\n").last ?? ""))
    }
}
