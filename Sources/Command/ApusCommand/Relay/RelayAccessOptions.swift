import ApusCore
import ApusLocal
import ArgumentParser

/// Where the secret and the doors come from: a cluster's directory, a configuration, or the command line.
struct RelayAccessOptions: ParsableArguments {
    @OptionGroup var credentials: RelaySecretOptions

    @Option(name: .customLong("dir"), help: "A local cluster's state directory; the default where no secret is given.")
    var directory: String?

    @Option(help: "The configuration of `apus relay serve`.")
    var config: String?

    func validate() throws {
        guard directory == nil || config == nil else { throw ValidationError("give --dir or --config, not both") }
        guard !credentials.isGivenHere || (directory == nil && config == nil) else {
            throw ValidationError("--secret is for a relay that is neither --dir's nor --config's")
        }
    }

    /// - Throws: 10020, 10021 or 10022 where the files are not there or not valid.
    func access(doors: [HostPort]) throws -> RelayAccess {
        if let config { return try RelayAccess(configuration: config) }
        if directory == nil,
            let secret = try credentials.given()
        {
            return RelayAccess(secret: secret, realm: credentials.realm, doors: doors)
        }
        return try RelayAccess(LocalCluster(directory: directory ?? StateDirectory.defaultPath))
    }
}
