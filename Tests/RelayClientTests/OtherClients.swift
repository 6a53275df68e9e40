import Foundation

/// Clients of TURN that others made, where the machine has them; scripts/lib/relay-clients.sh gets them.
enum OtherClients {
    /// Debian's coturn: a client that measures, and a peer that echoes.
    static let uclient = find("turnutils_uclient")
    static let peer = find("turnutils_peer")

    /// Debian's Chromium.
    static let chromium = find("chromium")

    /// A Python that has aioice and aiortc.
    static let python = made("bin/python")

    /// An agent on libnice (Clients/nice_agent.c).
    static let niceAgent = made("nice_agent")

    /// What scripts/lib/relay-clients.sh made, in the folder whose Python APUS_RELAY_CLIENTS names.
    private static func made(_ path: String) -> String? {
        let tests = URL(fileURLWithPath: #filePath).deletingLastPathComponent()
        let folders = [
            ProcessInfo.processInfo.environment["APUS_RELAY_CLIENTS"].map {
                URL(fileURLWithPath: $0).deletingLastPathComponent().deletingLastPathComponent()
            },
            tests.appending(path: "../../.build/relay-clients").standardizedFileURL,
        ]
        return folders.compactMap { $0?.appending(path: path).path }.first {
            FileManager.default.isExecutableFile(atPath: $0)
        }
    }

    /// Whether network namespaces with address translation can be made here: root, ip, nft and the kernel's parts.
    static let hasNamespaces: Bool = {
        guard let network = try? NatNetwork(a: .preserving, b: .preserving, endpoint: "any") else { return false }
        network.down()
        return true
    }()

    /// The path of a client of this target's own folder.
    static func script(_ name: String) -> String {
        URL(fileURLWithPath: #filePath).deletingLastPathComponent().appending(path: "Clients/\(name)").path
    }

    private static func find(_ name: String) -> String? {
        ["/usr/bin/", "/usr/local/bin/"].map { $0 + name }.first { FileManager.default.isExecutableFile(atPath: $0) }
    }
}

/// A command that ran to its end.
struct Outcome {
    var status: Int32
    var output: String
    var errors: String
    var all: String { output + errors }

    /// Runs a command, found in the PATH, and waits for it without holding a thread; ends it after so many seconds.
    static func of(_ command: [String], seconds: Int = 40) async throws -> Outcome {
        let child = try Child(["timeout", "-k", "1", "\(seconds)"] + command)
        await child.ended()
        return Outcome(status: child.status, output: child.output, errors: child.errors)
    }

    /// The same for short commands, from where nothing can wait.
    static func now(_ command: [String], seconds: Int = 10) throws -> Outcome {
        let child = try Child(["timeout", "-k", "1", "\(seconds)"] + command)
        child.wait()
        return Outcome(status: child.status, output: child.output, errors: child.errors)
    }
}

/// A process of a test, with what it said in files, so that it never waits for a reader.
final class Child: Sendable {
    private let process: Process
    private let outputPath: String
    private let errorPath: String
    private let ends: AsyncStream<Void>

    /// - Parameter command: The program, found in the PATH, and its arguments.
    init(_ command: [String]) throws {
        let path = FileManager.default.temporaryDirectory.appending(path: "apus-\(UUID().uuidString)").path
        (outputPath, errorPath) = (path + ".out", path + ".err")
        for file in [outputPath, errorPath] { _ = FileManager.default.createFile(atPath: file, contents: nil) }
        let (ends, end) = AsyncStream.makeStream(of: Void.self)
        self.ends = ends
        process = Process()
        process.executableURL = URL(fileURLWithPath: "/usr/bin/env")
        process.arguments = command
        process.standardInput = FileHandle.nullDevice
        process.standardOutput = FileHandle(forWritingAtPath: outputPath)
        process.standardError = FileHandle(forWritingAtPath: errorPath)
        process.terminationHandler = { _ in end.finish() }
        try process.run()
    }

    deinit {
        terminate()
        for file in [outputPath, errorPath] { try? FileManager.default.removeItem(atPath: file) }
    }

    var isRunning: Bool { process.isRunning }
    var id: Int32 { process.processIdentifier }
    var status: Int32 { process.terminationStatus }
    var output: String { Self.text(outputPath) }
    var errors: String { Self.text(errorPath) }

    /// Waits for the end without holding a thread.
    func ended() async {
        for await _ in ends {}
    }

    func wait() { process.waitUntilExit() }

    /// Ends it, if it runs, and waits for that.
    func terminate() {
        guard process.isRunning else { return }
        process.terminate()
        for _ in 0..<200 where process.isRunning { usleep(10_000) }
        // turnutils_peer does not end on SIGTERM.
        if process.isRunning { kill(process.processIdentifier, SIGKILL) }
        process.waitUntilExit()
    }

    private static func text(_ path: String) -> String { (try? String(contentsOfFile: path, encoding: .utf8)) ?? "" }
}
