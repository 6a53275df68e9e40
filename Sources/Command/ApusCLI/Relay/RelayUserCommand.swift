import ApusCore
import ApusLocal
import ApusNodeConfiguration
import ApusRelayNode
import ApusRelayService
import ArgumentParser

/// `apus relay user`: edits the file of a relay's static users.
struct RelayUserCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "user", abstract: "Edit the file of a relay's static users.",
        discussion: "The file contains keys, not passwords. A running relay reads it again on SIGHUP.",
        subcommands: [Add.self, List.self, Remove.self])

    /// The file of the users.
    struct Place: ParsableArguments {
        @Option(help: "Edit this file. Default: relay.users_file of --config.")
        var file: String?

        @Option(help: "Set the realm that clients receive. Default: relay.realm of --config, or apus.")
        var realm: String?

        @Option(help: "Read the configuration of `apus relay serve`.")
        var config: String?

        /// - Throws: 10022 if the configuration is not valid or names no file.
        func users() throws -> UsersFile {
            let relay = try config.map { try RelayNodeConfiguration(file: $0).relay }
            guard let path = file ?? relay.map(\.usersFile), !path.isEmpty else {
                throw ValidationError("use --file, or --config with relay.users_file")
            }
            return UsersFile(path: path, realm: realm ?? relay?.realm ?? "apus")
        }
    }

    struct Add: ParsableCommand {
        static let configuration = CommandConfiguration(
            commandName: "add", abstract: "Set a user's password, which is never an argument.")

        @OptionGroup var place: Place

        @Argument(help: "Set this user's password. The name has no colon.")
        var name: String

        @Option(help: "Read the password from this file; - prompts for it, or reads standard input without a terminal.")
        var passwordFile = "-"

        @OptionGroup var output: OutputOptions

        private struct Report: Encodable {
            var user: String
            var file: String
            /// False if the user existed and has another password.
            var isNew: Bool

            private enum CodingKeys: String, CodingKey {
                case user, file
                case isNew = "new"
            }
        }

        func run() throws {
            let users = try place.users()
            let password = try SecretText.given(nil, file: passwordFile, variable: nil, name: "password") ?? ""
            let isNew = try users.set(name, password: password)
            try output.show(
                Report(user: name, file: users.path, isNew: isNew),
                ["\(name) \(isNew ? "is new" : "has another password") in \(users.path)"])
        }
    }

    struct List: ParsableCommand {
        static let configuration = CommandConfiguration(commandName: "list", abstract: "Print the users' names.")

        @OptionGroup var place: Place
        @OptionGroup var output: OutputOptions

        private struct Report: Encodable {
            var users: [String]
        }

        func run() throws {
            let names = try place.users().names()
            try output.show(Report(users: names), names)
        }
    }

    struct Remove: ParsableCommand {
        static let configuration = CommandConfiguration(commandName: "remove", abstract: "Remove a user.")

        @OptionGroup var place: Place

        @Argument(help: "Remove this user.")
        var name: String

        @OptionGroup var output: OutputOptions

        private struct Report: Encodable {
            var user: String
            var file: String
        }

        func run() throws {
            let users = try place.users()
            guard try users.remove(name) else { throw ValidationError("\(users.path) has no user \(name)") }
            try output.show(
                Report(user: name, file: users.path), ["\(name) was removed from \(users.path)"])
        }
    }
}
