import ApusClient
import ApusContract
import ApusCore
import Foundation
import Newer

/// Lists the devices of the token's account, then prints how a device's presence changes.
///
///     presence HOST:PORT AUTHORITY-FILE TOKEN-FILE DEVICE CHANGES
///
/// AUTHORITY-FILE has the certificate of the cluster's authority. The app ends after so many changes; the state at the
/// start is the first.
@main
struct PresenceApp {
    static func main() async throws {
        let arguments = Array(CommandLine.arguments.dropFirst())
        guard arguments.count == 5, let endpoint = HostPort(arguments[0]), let changes = Int(arguments[4]) else {
            FileHandle.standardError.write(
                Data("usage: presence HOST:PORT AUTHORITY-FILE TOKEN-FILE DEVICE CHANGES\n".utf8))
            exit(64)
        }
        let token = try String(contentsOfFile: arguments[2], encoding: .utf8)
            .trimmingCharacters(in: .whitespacesAndNewlines)
        let session = try await connect(
            ClientConfiguration(endpoints: [endpoint], authorityFile: arguments[1], token: token, role: .app))
        defer { session.close() }
        for device in try await session.ask(ClientListDevicesRequest()).devices { say("device \(device.device)") }
        try await printPresence(of: arguments[3], changes: changes, session)
    }

    /// A session that has a connection.
    static func connect(_ configuration: ClientConfiguration) async throws -> ClientSession {
        let (links, feed) = AsyncStream.makeStream(
            of: (LinkState, ApusError?).self, bufferingPolicy: .bufferingNewest(1))
        let session = try ClientSession(
            configuration: configuration, eventLoop: AppProcess.eventLoop(), log: AppProcess.log("presence")
        ) { state, error in feed.yield((state, error)) }
        session.start()
        for await (state, error) in links {
            if state == .online { break }
            if state != .offline { throw error ?? ApusError(.notConnected) }
        }
        return session
    }

    /// Prints each state that differs from the one before, and returns after so many.
    static func printPresence(of device: String, changes: Int, _ session: ClientSession) async throws {
        var last: UInt32?
        var count = 0
        for try await event in session.events(of: "presence/\(device)", as: ClientPresence.self) {
            guard event.message.online != last else { continue }
            last = event.message.online
            say("\(device) is \(["offline", "online", "asleep"][Int(min(event.message.online, 2))])")
            count += 1
            if count == changes { return }
        }
    }

    /// Prints a line at once, also into a file.
    static func say(_ line: String) { FileHandle.standardOutput.write(Data("\(line)\n".utf8)) }
}
