import ApusCore
import ApusLocal
import ArgumentParser

/// `apus admin sign-in`: makes a link with which one browser signs in, once.
struct AdminSignIn: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "sign-in", abstract: "Make a link with which one browser signs in to the console, once.",
        discussion: """
            An operator's browser can do what an operator's token can, and shows the devices of --account. With --role \
            app the browser can do what an app of the account can.
            """)

    @OptionGroup var directory: DirectoryOption
    @OptionGroup var options: ServerOptions
    @Option(help: "Set the browser's role: admin or app.")
    var role = "admin"
    @Option(help: "Set the account whose devices the browser shows.")
    var account = LocalCluster.account.rawValue
    @Option(name: .customLong("device"), help: "Permit this device alone (repeatable). For --role app.")
    var devices: [String] = []
    @OptionGroup var output: OutputOptions

    func validate() throws {
        guard ["admin", "app"].contains(role) else { throw ValidationError("--role must be admin or app") }
        guard devices.isEmpty || role == "app" else { throw ValidationError("--device needs --role app") }
    }

    func run() async throws {
        let api = try await options.api(directory: directory.path)
        let link = try await SignInLink.make(api, role: role, account: account, devices: devices)
        try output.show(link, link.lines)
    }
}
