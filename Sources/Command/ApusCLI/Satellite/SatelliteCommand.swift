import ApusClient
import ApusCore
import ApusSessions
import ApusWyoming
import ArgumentParser

/// `apus satellite DEVICE`: makes a Wyoming satellite a device of the cluster (docs/voice.md).
struct SatelliteCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "satellite", abstract: "Make a Wyoming satellite a device that is spoken to.",
        discussion: """
            The satellite detects its wake word itself. Wyoming has no encryption and no authentication, so run this \
            beside the satellite, on the same machine.
            """)
    @Argument(help: "The device's id.") var device: String
    @Option(help: "Connect to the satellite at unix:PATH or tcp:HOST:PORT; HOST is a loopback address.")
    var satellite: String
    @Option(help: "The language, such as en or zh-CN. Default: that of the home.") var language: String?
    @OptionGroup var connection: ConnectOptions

    func validate() throws {
        _ = try DeviceID.argument(device, "DEVICE")
        _ = try WyomingAddress(satellite)
    }

    func run() async throws {
        let id = try DeviceID.argument(device, "DEVICE")
        let log = connection.log
        let configuration = try await connection.client(
            role: .device, access: AccessID(unchecked: device), device: id)
        let link = try CommandSession(configuration, log: log)
        let (session, ending) = (link.session, link.ending)
        session.start()
        let bridge = SatelliteBridge(try WyomingAddress(satellite), on: link.group, language: language, log: log)
        let result = await ending.race(seconds: nil) { () throws(ApusError) in await bridge.run(session, id) }
        try await link.close()
        try result.get()
    }
}
