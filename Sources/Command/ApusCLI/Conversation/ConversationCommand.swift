import ApusClient
import ApusCore
import ApusSessions
import ApusWyoming
import ArgumentParser

/// `apus conversation DEVICE`: makes the dialog of a device a conversation agent of Home Assistant (docs/voice.md).
struct ConversationCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "conversation",
        abstract: "Serve the dialog of a device as a conversation agent of the Wyoming protocol.",
        discussion: """
            Home Assistant's Wyoming integration connects to it. What is said in Home Assistant is said to the device, \
            on the word of this client's token. Wyoming has no encryption and no authentication: run this on the \
            machine of Home Assistant.
            """)
    @Argument(help: "The device's id. Its room is meant where a sentence names none.") var device: String
    @Option(help: "Listen at unix:PATH or tcp:HOST:PORT; HOST is a loopback address.") var listen: String
    @Option(help: "Set the access id of this client. Default: a random one.") var access: String?
    @OptionGroup var connection: ConnectOptions

    func validate() throws {
        _ = try DeviceID.argument(device, "DEVICE")
        _ = try WyomingAddress(listen)
    }

    func run() async throws {
        let id = try DeviceID.argument(device, "DEVICE")
        let address = try WyomingAddress(listen)
        let log = connection.log
        let random = "app-\(String(UInt64.random(in: 0...(.max)), radix: 36))"
        let configuration = try await connection.client(
            role: .app, access: try .argument(access ?? random, "--access"), device: nil)
        let link = try CommandSession(configuration, log: log)
        let (session, ending, group) = (link.session, link.ending, link.group)
        session.start()
        let agent = ConversationAgent(session, id, log: log)
        let result = await ending.race(seconds: nil) { () throws(ApusError) in
            try await agent.run(address, on: group)
        }
        try await link.close()
        try result.get()
    }
}
