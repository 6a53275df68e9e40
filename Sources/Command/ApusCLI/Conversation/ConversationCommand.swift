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
    @Option(help: "Accept this number of connections. Further ones are closed.") var connectionsMax = 64
    @Option(help: "Let this number of texts wait. Further ones are refused with 10007.") var textsMax = 32
    @Option(help: "Let this number of texts of one connection wait.") var connectionTextsMax = 4
    @Option(help: "Answer a text within this number of seconds, also with an error.") var answerSeconds = 20
    @Option(help: "Close a connection that sends nothing for this number of seconds.") var idleSeconds = 60
    @Option(help: "Set the access id of this client. Default: a random one.") var access: String?
    @OptionGroup var connection: ConnectOptions

    func validate() throws {
        _ = try DeviceID.argument(device, "DEVICE")
        _ = try WyomingAddress(listen)
        guard (1...10_000).contains(connectionsMax), (1...10_000).contains(textsMax),
            (1...textsMax).contains(connectionTextsMax), (1...60).contains(answerSeconds),
            (5...86_400).contains(idleSeconds)
        else {
            throw ValidationError(
                """
                --connections-max and --texts-max are 1 to 10000, --connection-texts-max at most --texts-max, \
                --answer-seconds 1 to 60, --idle-seconds 5 to 86400
                """)
        }
    }

    private var limits: ConversationStateMachine.Limits {
        var limits = ConversationStateMachine.Limits()
        (limits.textsMax, limits.connectionTextsMax) = (textsMax, connectionTextsMax)
        (limits.answerTime, limits.idleTime) = (.seconds(answerSeconds), .seconds(idleSeconds))
        return limits
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
        let agent = ConversationAgent(session, id, limits, connectionsMax: connectionsMax, log: log)
        let result = await ending.race(seconds: nil) { () throws(ApusError) in
            try await agent.run(address, on: group)
        }
        try await link.close()
        try result.get()
    }
}
