import ApusCore
import ApusLocal
import ArgumentParser

/// The source of the secret and the endpoints: a cluster's directory, a configuration, or the command line.
struct RelayAccessOptions: ParsableArguments {
    @OptionGroup var credentials: RelaySecretOptions

    @Option(name: .customLong("dir"), help: "Use a local cluster's state directory. The default if no secret is given.")
    var directory: String?

    @Option(help: "Read the configuration of `apus relay serve`.")
    var config: String?

    func validate() throws {
        guard directory == nil || config == nil else { throw ValidationError("use --dir or --config, not both") }
        guard !credentials.isGivenHere || (directory == nil && config == nil) else {
            throw ValidationError("--secret cannot be combined with --dir or --config")
        }
    }

    /// - Throws: 10020, 10021 or 10022 if the files do not exist or are not valid.
    func access(endpoints: [HostPort]) throws -> RelayAccess {
        if let config { return try RelayAccess(configuration: config) }
        if directory == nil,
            let secret = try credentials.given()
        {
            return RelayAccess(secret: secret, realm: credentials.realm, endpoints: endpoints)
        }
        return try RelayAccess(LocalCluster(directory: directory ?? StateDirectory.defaultPath))
    }
}
