import ApusConfiguration
import ApusCore
import ApusStorage

extension NodeConfiguration {
    /// Reads the keys under `ownership.`. Throws 10022.
    mutating func readOwnership(_ reader: inout ConfigurationReader) throws(ApusError) {
        let isInEtcd = try reader.choice("ownership.store", of: ["local", "etcd"], default: "local") == "etcd"
        let earlier = try reader.path("ownership.file", default: "")
        let directory = try reader.path("ownership.directory", default: Self.withoutSuffix(earlier))
        if !isInEtcd {
            guard !directory.isEmpty else { throw reader.invalid("ownership.directory", "the key is missing") }
            ownershipDirectory = directory
            earlierOwnershipFile = earlier.isEmpty ? "\(directory).sqlite" : earlier
        }
        ownershipRevisionsKept = try reader.int(
            "ownership.revisions_kept", default: ownershipRevisionsKept, in: 16...256)
        ownershipPoll = try reader.duration("ownership.poll", default: ownershipPoll)
        ownershipMemoryInterval = try reader.duration("ownership.memory_interval", default: ownershipMemoryInterval)
        var configuration = EtcdConfiguration()
        try configuration.read(&reader)
        guard isInEtcd else { return }
        guard !configuration.endpoints.isEmpty else {
            throw reader.invalid("ownership.etcd.endpoints", "the key is missing")
        }
        etcd = configuration
    }

    /// The directory that replaces a file of earlier releases, next to that file.
    private static func withoutSuffix(_ file: String) -> String {
        guard !file.isEmpty else { return "" }
        return file.hasSuffix(".sqlite") ? String(file.dropLast(".sqlite".count)) : "\(file).revisions"
    }
}

extension EtcdConfiguration {
    /// Reads the keys under `ownership.etcd.`. Throws 10022.
    fileprivate mutating func read(_ reader: inout ConfigurationReader) throws(ApusError) {
        let d = self
        endpoints = try reader.values(
            "ownership.etcd.endpoints", countMax: Self.endpointCountMax, { EtcdEndpoint($0) },
            { "https://HOST:PORT or http://HOST:PORT is expected, not '\($0)'" })
        guard Set(endpoints.map(\.isSecure)).count < 2 else {
            throw reader.invalid("ownership.etcd.endpoints", "either all endpoints or none are expected to be https")
        }
        prefix = try reader.string("ownership.etcd.prefix", default: d.prefix)
        guard prefix.utf8.count <= 128 else {
            throw reader.invalid("ownership.etcd.prefix", "at most 128 bytes are expected")
        }
        timeout = try reader.duration("ownership.etcd.timeout", default: d.timeout)
        guard timeout >= .milliseconds(50), timeout <= .seconds(30) else {
            throw reader.invalid("ownership.etcd.timeout", "50ms to 30s are expected")
        }
        pollInterval = try reader.duration("ownership.etcd.poll", default: d.pollInterval)
        guard pollInterval >= .milliseconds(100), pollInterval <= .seconds(60) else {
            throw reader.invalid("ownership.etcd.poll", "100ms to 60s are expected")
        }
        retryDelayMin = try reader.duration("ownership.etcd.retry_min", default: d.retryDelayMin)
        retryDelayMax = try reader.duration("ownership.etcd.retry_max", default: d.retryDelayMax)
        guard retryDelayMin >= .milliseconds(10), retryDelayMin <= retryDelayMax, retryDelayMax <= .seconds(60) else {
            throw reader.invalid("ownership.etcd.retry_min", "10ms up to ownership.etcd.retry_max, at most 60s")
        }
        authorityFile = try reader.path("ownership.etcd.authority", default: "")
        certificateFile = try reader.path("ownership.etcd.certificate", default: "")
        keyFile = try reader.path("ownership.etcd.key", default: "")
        guard certificateFile.isEmpty == keyFile.isEmpty else {
            throw reader.invalid("ownership.etcd.key", "ownership.etcd.certificate and its key are expected together")
        }
        user = try reader.string("ownership.etcd.user", default: "")
        passwordFile = try reader.path("ownership.etcd.password_file", default: "")
        guard user.isEmpty == passwordFile.isEmpty else {
            throw reader.invalid("ownership.etcd.user", "a user and ownership.etcd.password_file are expected together")
        }
    }
}
