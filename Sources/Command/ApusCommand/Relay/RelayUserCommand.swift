import ApusCore
import ApusLocal
import ApusNode
import ArgumentParser

/// `apus relay user`: the file of a relay's static users.
struct RelayUserCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "user", abstract: "Edit the file of a relay's static users.",
        discussion: "The file has keys and no passwords. A relay that runs reads it anew on SIGHUP.",
        subcommands: [Add.self, List.self, Remove.self])

    /// Where the users are.
    struct Place: ParsableArguments {
        @Option(help: "The file of the users. Default: relay.users_file of --config.")
        var file: String?

        @Option(help: "The realm that clients are told. Default: relay.realm of --config, or apus.")
        var realm: String?

        @Option(help: "The configuration of `apus relay serve`.")
        var config: String?

        /// - Throws: 10022 where the configuration is not valid or names no file.
        func users() throws -> UsersFile {
            let relay = try config.map { try RelayNodeConfiguration(file: $0).relay }
            guard let path = file ?? relay.map(\.usersFile), !path.isEmpty else {
                throw ValidationError("give --file, or --config with relay.users_file")
            }
            return UsersFile(path: path, realm: realm ?? relay?.realm ?? "apus")
        }
    }

    struct Add: ParsableCommand {
        static let configuration = CommandConfiguration(
            commandName: "add", abstract: "Give a user a password, which is never on the command line.")

        @OptionGroup var place: Place

        @Argument(help: "The user's name, without a colon.")
        var name: String

        @Option(help: "The file that the password is in; - asks for it, or reads standard input if it is no terminal.")
        var passwordFile = "-"

        func run() throws {
            let users = try place.users()
            let password = try SecretText.given(nil, file: passwordFile, variable: nil, name: "password") ?? ""
            let isNew = try users.set(name, password: password)
            Console.say("\(name) \(isNew ? "is new" : "has another password") in \(users.path)")
        }
    }

    struct List: ParsableCommand {
        static let configuration = CommandConfiguration(commandName: "list", abstract: "Print the users' names.")

        @OptionGroup var place: Place

        func run() throws {
            for name in try place.users().names() { Console.say(name) }
        }
    }

    struct Remove: ParsableCommand {
        static let configuration = CommandConfiguration(commandName: "remove", abstract: "Take a user out.")

        @OptionGroup var place: Place

        @Argument(help: "The user's name.")
        var name: String

        func run() throws {
            let users = try place.users()
            guard try users.remove(name) else { throw ValidationError("\(users.path) has no user \(name)") }
            Console.say("\(name) is out of \(users.path)")
        }
    }
}
