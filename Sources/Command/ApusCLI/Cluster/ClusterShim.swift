import ApusCore
import ApusLocal
import ArgumentParser

/// `apus cluster shim NAME`: delays the packets of a node. `apus cluster delay` starts it in the node's namespace.
struct ClusterShim: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "shim", abstract: "Delay the packets that a node sends, in its network namespace.",
        shouldDisplay: false)
    @OptionGroup var directory: DirectoryOption
    @Argument(help: "Select the node or the client by its name.")
    var name: String

    func run() throws {
        var shim = try DelayShim(of: name, in: StateDirectory(directory.path))
        try shim.run()
    }
}
